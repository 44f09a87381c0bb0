-- read_states: the states of these jobs, to explain why some were not changed.
-- Fence: none (reads).
-- Rows: one per job that exists.
-- Clock: none.
SELECT id, state, ending IS NOT NULL FROM pgjobs_job WHERE id = ANY (%(ids)s::bigint[])
