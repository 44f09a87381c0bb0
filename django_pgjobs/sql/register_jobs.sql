-- register_jobs: insert many jobs, in the order given.
-- Fence: none (creates rows that no one else sees yet).
-- Rows: one id per job, in input order.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_job (name, queue, priority, max_attempts, timeout_seconds, payload, headers, description, run_at)
SELECT
    n.name, n.queue, n.priority, n.max_attempts, n.timeout, n.payload, n.headers, n.description,
    coalesce(n.run_at, statement_timestamp()) + make_interval(secs => n.delay)
FROM ROWS FROM (
    json_to_recordset(%(jobs)s::json) AS (
        name text, queue text, priority smallint, max_attempts integer, timeout float8,
        payload jsonb, headers jsonb, description text, run_at timestamptz, delay float8
    )
) WITH ORDINALITY AS n (name, queue, priority, max_attempts, timeout, payload, headers, description, run_at, delay, position)
ORDER BY n.position
RETURNING id
