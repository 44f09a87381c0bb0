-- lock_gate: lock the gate of a batch, so that the next statement sees what the transactions before it have done to the batch.
-- Fence: none (changes nothing).
-- Rows: 1 = locked; 0 = the batch is gone.
-- Clock: none.
SELECT g.job_id
FROM pgjobs_gate AS g
WHERE g.job_id = ANY (ARRAY[%(id)s::bigint])
FOR NO KEY UPDATE
