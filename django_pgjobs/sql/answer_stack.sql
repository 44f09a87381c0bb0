-- answer_stack: store where a running job is, or why that cannot be told, with its attempt. Waits for no lock.
-- Fence: required.
-- Rows: 1 = stored; 0 = answered before, renewed at this moment, or the job has ended, or is held by another claim or worker.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT s.id
    FROM pgjobs_stack AS s
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[s.job_id])
    WHERE s.id = %(id)s::bigint
      AND s.answered_at IS NULL
      AND s.worker = %(worker)s::uuid
      AND j.claim_id = s.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR UPDATE OF s SKIP LOCKED
)
UPDATE pgjobs_stack AS s
SET answered_at = statement_timestamp(), stack = %(stack)s::text, problem = %(problem)s::text
FROM locked
WHERE s.id = locked.id AND s.answered_at IS NULL
RETURNING s.id
