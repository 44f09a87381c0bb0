-- read_states: how these jobs stand, to say why some were not changed.
-- Fence: none (reads).
-- Rows: one per job that exists.
-- Clock: none.
SELECT id, state, ending IS NOT NULL FROM pgjobs_job WHERE id = ANY (%(ids)s::bigint[])
