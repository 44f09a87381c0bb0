-- begin_notice: make the one row of notices, from now on: older failures are nobody's news.
-- Fence: creates (the one row; whoever comes second changes nothing).
-- Rows: none.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_notice (id, finished_at, problems) VALUES (1, statement_timestamp(), '[]')
ON CONFLICT (id) DO NOTHING
