-- abandon_jobs: abandon unclaimed jobs, or leave only their callback.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job abandoned: whether somebody waits for its end, whether its callback is due, and whether that may be older than the jobs claimed now.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT id FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND claim_id IS NULL AND ending IS NULL
    ORDER BY id
    FOR NO KEY UPDATE
),
abandoned AS (
    UPDATE pgjobs_job AS j
    SET error = %(reason)s,
        outcome = CASE WHEN NOT j.name = ANY (%(with_callback)s::text[]) THEN 'abandoned' END,
        finished_at = CASE WHEN NOT j.name = ANY (%(with_callback)s::text[]) THEN statement_timestamp() END,
        ending = CASE WHEN j.name = ANY (%(with_callback)s::text[]) THEN 'abandoned' END,
        run_at = CASE WHEN j.name = ANY (%(with_callback)s::text[]) THEN least(j.run_at, statement_timestamp()) ELSE j.run_at END,
        ready_at = statement_timestamp(),
        hold = NULL,
        -- Its body will not start, and its callback may wait for long.
        unique_key = CASE
            WHEN j.name = ANY (%(with_callback)s::text[]) AND j.key_scope = 'until_started' THEN NULL
            ELSE j.unique_key
        END
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id, j.queue, j.priority, j.waited AND j.finished_at IS NOT NULL AS waited, j.ending IS NOT NULL AS due,
        j.run_at < statement_timestamp() - interval '1 second' AS old -- else a near scan finds it
)
SELECT id, queue, priority, waited, due, due AND old AS old FROM abandoned
