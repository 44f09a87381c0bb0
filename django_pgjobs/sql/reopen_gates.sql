-- reopen_gates: take ends off gates whose jobs are to run again, and close gates again whose own jobs have not begun.
-- Fence: none (an operator's retry, under the locks of jobs and gates).
-- Rows: none.
-- Clock: none.
UPDATE pgjobs_gate AS g
SET pending = g.pending + r.succeeded + r.abandoned + r.cancelled,
    succeeded = g.succeeded - r.succeeded,
    abandoned = g.abandoned - r.abandoned,
    cancelled = g.cancelled - r.cancelled,
    unmet = g.unmet - r.unmet,
    due = CASE WHEN r.closes THEN false ELSE g.due END,
    opened_at = CASE WHEN r.closes THEN NULL ELSE g.opened_at END
FROM json_to_recordset(%(gates)s::json) AS r (
    job_id bigint, succeeded bigint, abandoned bigint, cancelled bigint, unmet bigint, closes boolean
)
WHERE g.job_id = ANY (ARRAY[r.job_id])
