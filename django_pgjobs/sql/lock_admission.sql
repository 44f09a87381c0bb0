-- lock_admission: become the one admitter of this table until the transaction ends, if there is none; the statements after it read the answer.
-- Fence: none (locks no row).
-- Rows: 1 = 'true' or 'false'.
-- Clock: none.
SELECT set_config(
    'pgjobs.admits',
    pg_try_advisory_xact_lock(%(class)s::integer, mod('pgjobs_job'::regclass::oid::bigint, 2147483647)::integer)::text,
    true
)
