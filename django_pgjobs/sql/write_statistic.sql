-- write_statistic: replace the stored figures by those measured now.
-- Fence: none (the leader's row; two leaders at once write it one after the other).
-- Rows: 1.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_statistic (id, measured_at, worker_name, figures)
VALUES (1, statement_timestamp(), %(worker_name)s::text, %(figures)s::jsonb)
ON CONFLICT (id) DO UPDATE
SET measured_at = excluded.measured_at,
    worker_name = excluded.worker_name,
    figures = excluded.figures
RETURNING id
