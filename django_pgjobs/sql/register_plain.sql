-- register_plain: insert one job that starts at once and has only arguments, like most jobs.
-- Fence: none (creates a row that no one else sees yet).
-- Rows: 1 = the new job's id, and as text its run_at, which is its created_at too.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_job (name, queue, priority, max_attempts, timeout_seconds, payload, run_at)
VALUES (%(name)s, %(queue)s, %(priority)s, %(max_attempts)s, %(timeout)s, %(payload)s, statement_timestamp())
RETURNING id, run_at::text
