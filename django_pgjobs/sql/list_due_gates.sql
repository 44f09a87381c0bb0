-- list_due_gates: gates that were to open while another session had their jobs locked.
-- Fence: none (reads).
-- Rows: one per gate: the id of its job.
-- Clock: none.
SELECT g.job_id FROM pgjobs_gate AS g WHERE g.due LIMIT %(limit)s::integer
