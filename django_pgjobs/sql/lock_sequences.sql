-- lock_sequences: keep others from registering into some sequences, and from ending their jobs, until the transaction ends; in the order of the locks.
-- Fence: none (locks no row).
-- Rows: 1 = the number of locks, and the isolation level of the transaction.
-- Clock: none.
SELECT count(pg_advisory_xact_lock(%(class)s::integer, s.bucket)), current_setting('transaction_isolation')
FROM (
    SELECT DISTINCT hashtext(w.sequence) & 1023 AS bucket FROM unnest(%(sequences)s::text[]) AS w (sequence) ORDER BY bucket
) AS s
