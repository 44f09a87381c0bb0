-- begin_notice: make the one row of notices, from now on: older failures are not reported.
-- Fence: creates (the one row; a second call changes nothing).
-- Rows: none.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_notice (id, finished_at, problems) VALUES (1, statement_timestamp(), '[]')
ON CONFLICT (id) DO NOTHING
