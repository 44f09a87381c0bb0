-- list_waiting_gates: gates that have not opened, in the order of their ids, from one on.
-- Fence: none (reads).
-- Rows: one per gate: the id of its job, and whether that waits for its turn in a sequence.
-- Clock: none.
SELECT g.job_id, g.eager AND g.hands > 0
FROM pgjobs_gate AS g
WHERE g.opened_at IS NULL AND g.job_id > %(after)s::bigint
ORDER BY g.job_id
LIMIT %(limit)s::integer
