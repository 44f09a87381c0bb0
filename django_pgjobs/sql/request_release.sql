-- request_release: ask the worker that has claimed these jobs to release them; only it may end its attempt.
-- Fence: none (an operator's request; a claimed job's attempt is never overwritten, only asked).
-- Rows: one per job whose worker is asked.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT id FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND claim_id IS NOT NULL
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE pgjobs_job AS j
SET release_requested_at = statement_timestamp()
WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.finished_at IS NULL AND j.claim_id IS NOT NULL
RETURNING j.id, j.queue, j.priority
