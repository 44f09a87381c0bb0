-- list_waiting_gates: gates that have not opened, in the order of their ids, from one on.
-- Fence: none (reads).
-- Rows: one per gate: the id of its job.
-- Clock: none.
SELECT g.job_id
FROM pgjobs_gate AS g
WHERE g.opened_at IS NULL AND g.job_id > %(after)s::bigint
ORDER BY g.job_id
LIMIT %(limit)s::integer
