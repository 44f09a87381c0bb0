-- read_statistic: the figures that a leader measured last.
-- Fence: none (reads).
-- Rows: 1 = the figures as JSON, when they were measured, how many seconds ago, each null if there are none yet; and the time.
-- Clock: statement_timestamp().
SELECT
    s.figures::text, s.measured_at, extract(epoch FROM statement_timestamp() - s.measured_at)::float8, s.worker_name,
    statement_timestamp()
FROM (VALUES (1)) AS one (id)
LEFT JOIN pgjobs_statistic AS s ON s.id = one.id
