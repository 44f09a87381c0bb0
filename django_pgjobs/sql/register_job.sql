-- register_job: insert one job.
-- Fence: none (creates a row that nobody knows yet).
-- Rows: 1 = the new job's id, and as text its run_at and created_at.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_job (name, queue, priority, max_attempts, timeout_seconds, payload, headers, description, run_at)
VALUES (
    %(name)s, %(queue)s, %(priority)s, %(max_attempts)s, %(timeout)s, %(payload)s::jsonb, %(headers)s::jsonb, %(description)s,
    coalesce(%(run_at)s::timestamptz, statement_timestamp()) + %(delay)s * interval '1 s'
)
RETURNING id, run_at::text, created_at::text
