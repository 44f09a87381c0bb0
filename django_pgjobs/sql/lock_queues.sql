-- lock_queues: keep others from registering into queues of bounded capacity until the transaction ends.
-- Fence: none (locks no row).
-- Rows: 1 = the number of locks, and the isolation level of the transaction.
-- Clock: none.
SELECT count(pg_advisory_xact_lock(%(class)s::integer, key)), current_setting('transaction_isolation')
FROM unnest(%(keys)s::integer[]) AS key
