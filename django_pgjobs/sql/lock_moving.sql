-- lock_moving: be the only one who moves jobs to this database, until the transaction ends.
-- Fence: none (locks no row).
-- Rows: 1.
-- Clock: none.
SELECT pg_advisory_xact_lock(%(class)s::integer, mod('pgjobs_job'::regclass::oid::bigint, 2147483647)::integer)
