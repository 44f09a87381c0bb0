-- cancel_jobs: end unclaimed jobs, or leave only their callback, or ask the worker that runs them. A request never gets weaker.
-- Fence: none (an operator's request; a claimed job's attempt is never overwritten, only asked).
-- Rows: one per job that could be cancelled: whether somebody waits for its end, whether its callback is due, and whether that may be older than the jobs claimed now.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT id FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[])
      AND finished_at IS NULL
      -- An unknown ending may be cancelled too: otherwise its job would stay parked for ever.
      AND (ending IS NULL OR claim_id IS NOT NULL OR ending <> ALL (%(endings)s::text[]))
    ORDER BY id
    FOR NO KEY UPDATE
),
cancelled AS (
    UPDATE pgjobs_job AS j
    SET cancel_requested_at = coalesce(j.cancel_requested_at, statement_timestamp()),
        cancel_mode = (%(modes)s::text[])[greatest(
            array_position(%(modes)s::text[], j.cancel_mode), array_position(%(modes)s::text[], %(mode)s::text)
        )],
        cancel_by = %(by)s,
        cancel_reason = %(reason)s,
        outcome = CASE
            WHEN j.claim_id IS NULL AND NOT j.name = ANY (%(with_callback)s::text[]) THEN 'cancelled'
            ELSE j.outcome
        END,
        finished_at = CASE
            WHEN j.claim_id IS NULL AND NOT j.name = ANY (%(with_callback)s::text[]) THEN statement_timestamp()
        END,
        ending = CASE
            WHEN j.claim_id IS NULL AND j.name = ANY (%(with_callback)s::text[]) THEN 'cancelled'
            ELSE j.ending
        END,
        run_at = CASE
            WHEN j.claim_id IS NULL AND j.name = ANY (%(with_callback)s::text[]) THEN least(j.run_at, statement_timestamp())
            ELSE j.run_at
        END,
        -- Only its callback is left, and that is due from now on.
        ready_at = CASE WHEN j.claim_id IS NULL AND (j.ending IS NULL OR j.hold IS NOT NULL) THEN statement_timestamp() ELSE j.ready_at END,
        hold = CASE WHEN j.claim_id IS NULL THEN NULL ELSE j.hold END,
        -- Its body will not start, and its callback may wait for long.
        unique_key = CASE
            WHEN j.claim_id IS NULL AND j.name = ANY (%(with_callback)s::text[]) AND j.key_scope = 'until_started' THEN NULL
            ELSE j.unique_key
        END
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.finished_at IS NULL
    RETURNING j.id, j.queue, j.priority, j.waited AND j.finished_at IS NOT NULL AS waited, j.ending IS NOT NULL AND j.claim_id IS NULL AS due,
        j.run_at < statement_timestamp() - interval '1 second' AS old -- else a near scan finds it
)
SELECT id, queue, priority, waited, due, due AND old AS old FROM cancelled
