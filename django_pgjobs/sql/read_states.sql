-- read_states: the states of these jobs, to explain why some were not changed.
-- Fence: none (reads).
-- Rows: one per job that exists.
-- Clock: none.
SELECT j.id, coalesce(j.outcome, CASE WHEN j.claim_id IS NOT NULL THEN 'running' END, j.hold, 'ready'), j.ending IS NOT NULL
FROM pgjobs_job AS j
WHERE j.id = ANY (%(ids)s::bigint[])
