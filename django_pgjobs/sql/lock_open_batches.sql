-- lock_open_batches: lock the gates of batches that are open for members, in the order of their ids.
-- Fence: none (changes nothing).
-- Rows: one per gate locked: the id of its job.
-- Clock: none.
SELECT g.job_id
FROM unnest(%(ids)s::bigint[]) AS wanted (job_id)
JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[wanted.job_id])
WHERE g.hands > 0 AND NOT g.eager
ORDER BY wanted.job_id
FOR NO KEY UPDATE OF g
