-- reserve_ids: take ids for a COPY, and the clock that its delays count from.
-- Fence: none (creates nothing; unused ids are gaps).
-- Rows: one id and instant per job, ids ascending.
-- Clock: statement_timestamp().
SELECT nextval(pg_get_serial_sequence('pgjobs_job', 'id')), statement_timestamp()
FROM generate_series(1, %(count)s::integer)
