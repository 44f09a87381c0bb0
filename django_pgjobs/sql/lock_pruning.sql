-- lock_pruning: until the transaction ends, hold up retries, if none is under way and jobs are to be pruned; or hold up pruning, as jobs are retried.
-- Fence: none (locks no row).
-- Rows: 1 = whether it is so; it always is for a retry, which waits for a prune.
-- Clock: none.
SELECT CASE
    WHEN %(prunes)s::boolean
    THEN pg_try_advisory_xact_lock(%(class)s::integer, mod('pgjobs_job'::regclass::oid::bigint, 2147483647)::integer)
    ELSE pg_advisory_xact_lock_shared(
        %(class)s::integer, mod('pgjobs_job'::regclass::oid::bigint, 2147483647)::integer
    ) IS NOT NULL
END
