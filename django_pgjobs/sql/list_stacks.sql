-- list_stacks: the open requests for stacks of jobs to this worker that have not lapsed.
-- Fence: none (reads).
-- Rows: one per request = its id, the job and the claim that it is about.
-- Clock: statement_timestamp().
SELECT s.id, s.job_id, s.claim_id
FROM pgjobs_stack AS s
WHERE s.worker = %(worker)s::uuid
  AND s.answered_at IS NULL
  AND s.asked_at > statement_timestamp() - interval '2 minutes'
ORDER BY s.id
LIMIT 100
