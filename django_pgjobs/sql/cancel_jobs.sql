-- cancel_jobs: end unclaimed jobs, or leave only their callback, or an end that counts in a gate, to a worker, or ask the worker that runs them. A batch that waits for members gets the request, too. A request never gets weaker.
-- Fence: none (an operator's request; a claimed job's attempt is never overwritten, only asked).
-- Rows: one per job that could be cancelled: what a signal of its end says, whether it has ended, whether others wait for its end, whether its callback is due, whether that may be older than the jobs claimed now, and whether it is a batch that waits for members.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT id FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[])
      AND finished_at IS NULL
      -- An unknown ending may be cancelled too: otherwise its job would stay parked forever.
      AND (ending IS NULL OR claim_id IS NOT NULL OR ending <> ALL (%(endings)s::text[]))
    ORDER BY id
    FOR NO KEY UPDATE
),
judged AS MATERIALIZED (
    SELECT
        locked.id,
        (SELECT g.eager FROM pgjobs_gate AS g WHERE g.job_id = ANY (ARRAY[locked.id])) IS NOT DISTINCT FROM false AS gathers
    FROM locked
),
cancelled AS (
    UPDATE pgjobs_job AS j
    SET cancel_requested_at = coalesce(j.cancel_requested_at, statement_timestamp()),
        cancel_mode = (%(modes)s::text[])[greatest(
            array_position(%(modes)s::text[], j.cancel_mode), array_position(%(modes)s::text[], %(mode)s::text)
        )],
        cancel_by = %(by)s,
        cancel_reason = %(reason)s,
        (outcome, finished_at, ending, run_at, ready_at, hold, unique_key) = (
            SELECT
                CASE WHEN f.unclaimed AND NOT f.later THEN 'cancelled' ELSE j.outcome END,
                CASE WHEN f.unclaimed AND NOT f.later THEN statement_timestamp() END,
                CASE WHEN f.unclaimed AND f.later THEN 'cancelled' ELSE j.ending END,
                CASE WHEN f.unclaimed AND f.later THEN least(j.run_at, statement_timestamp()) ELSE j.run_at END,
                -- Only its callback is left, and that is due from now on.
                CASE WHEN f.unclaimed AND (j.ending IS NULL OR j.hold IS NOT NULL) THEN statement_timestamp() ELSE j.ready_at END,
                CASE WHEN f.unclaimed THEN NULL ELSE j.hold END,
                -- Its body will not start, and its callback may wait for long.
                CASE WHEN f.unclaimed AND f.later AND j.key_scope = 'until_started' THEN NULL ELSE j.unique_key END
            FROM (
                SELECT
                    j.claim_id IS NULL AND NOT (judged.gathers AND j.hold IS NOT DISTINCT FROM 'blocked') AS unclaimed,
                    j.name = ANY (%(with_callback)s::text[]) OR j.flow & 7 <> 0 AS later
            ) AS f
        )
    FROM judged
    WHERE j.id = ANY (ARRAY[judged.id]) AND j.finished_at IS NULL
    RETURNING
        j.id, j.queue, j.priority, j.waited AND j.finished_at IS NOT NULL AS waited,
        j.ending IS NOT NULL AND j.claim_id IS NULL AS due,
        j.run_at < statement_timestamp() - interval '1 second' AS old, -- else a near scan finds it
        judged.gathers AND j.hold IS NOT DISTINCT FROM 'blocked' AS gathers,
        j.name, j.attempt, j.finished_at IS NOT NULL AS ended
)
SELECT id, queue, priority, waited, due, due AND old AS old, gathers, name, attempt, ended FROM cancelled
