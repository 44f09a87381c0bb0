-- list_writers: the transactions that are writing jobs now, or wait to; what they write becomes visible later.
-- Fence: none (reads).
-- Rows: 1 = the instant before which any other transaction that has ended a job has committed or was rolled back, and the writers.
-- Clock: statement_timestamp().
SELECT
    -- The clock of an end stands still from the start of its statement on; its lock comes a moment later.
    (statement_timestamp() - make_interval(secs => %(margin)s::float8))::text,
    coalesce(array_agg(DISTINCT l.virtualtransaction), '{}')
FROM pg_locks AS l
WHERE l.mode = 'RowExclusiveLock'
  AND l.relation = 'pgjobs_job'::regclass
  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
