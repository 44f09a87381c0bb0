-- abandon_jobs: abandon unclaimed jobs, or leave only their callback, or an end that counts in a gate, to a worker; not batches that wait for members.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job abandoned: what a signal of its end says, whether it has ended, whether others wait for its end, whether its callback is due, and whether that may be older than the jobs claimed now.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT j.id, j.name = ANY (%(with_callback)s::text[]) OR j.flow & 7 <> 0 AS later
    FROM pgjobs_job AS j
    WHERE j.id = ANY (%(ids)s::bigint[])
      AND j.finished_at IS NULL
      AND j.claim_id IS NULL
      AND j.ending IS NULL
      AND (
          j.hold IS DISTINCT FROM 'blocked'
          OR (SELECT g.eager FROM pgjobs_gate AS g WHERE g.job_id = ANY (ARRAY[j.id])) IS DISTINCT FROM false
      )
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
abandoned AS (
    UPDATE pgjobs_job AS j
    SET error = %(reason)s,
        outcome = CASE WHEN NOT locked.later THEN 'abandoned' END,
        finished_at = CASE WHEN NOT locked.later THEN statement_timestamp() END,
        ending = CASE WHEN locked.later THEN 'abandoned' END,
        run_at = CASE WHEN locked.later THEN least(j.run_at, statement_timestamp()) ELSE j.run_at END,
        ready_at = statement_timestamp(),
        hold = NULL,
        -- Its body will not start, and its callback may wait for long.
        unique_key = CASE WHEN locked.later AND j.key_scope = 'until_started' THEN NULL ELSE j.unique_key END
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id]) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id, j.queue, j.priority, j.waited AND j.finished_at IS NOT NULL AS waited, j.ending IS NOT NULL AS due,
        j.run_at < statement_timestamp() - interval '1 second' AS old, -- else a near scan finds it
        j.name, j.attempt, j.finished_at IS NOT NULL AS ended
)
SELECT id, queue, priority, waited, due, due AND old AS old, false AS gathers, name, attempt, ended FROM abandoned
