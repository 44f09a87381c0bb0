-- lock_gates: lock gates in the order of their ids, without waiting, so that what a later statement counts is final.
-- Fence: none (changes nothing).
-- Rows: one per gate locked: the id of its job.
-- Clock: none.
SELECT g.job_id
FROM unnest(%(ids)s::bigint[]) AS wanted (job_id)
JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[wanted.job_id])
ORDER BY wanted.job_id
FOR NO KEY UPDATE OF g SKIP LOCKED
