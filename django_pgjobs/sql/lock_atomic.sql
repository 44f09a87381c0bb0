-- lock_atomic: lock a job's row inside the transaction of its body, for a fenced statement that skips locked rows to end it.
-- Fence: none (changes nothing).
-- Rows: 1 = locked, with the worker that has claimed the job, and its flow; 0 = the row is gone.
-- Clock: none.
SELECT (SELECT k.worker FROM pgjobs_claim AS k WHERE k.claim_id = j.claim_id LIMIT 1), j.flow
FROM pgjobs_job AS j
WHERE j.id = ANY (ARRAY[%(id)s::bigint])
FOR NO KEY UPDATE OF j
