-- register_job: insert one job, with all that a job may have but the window of a key and a flow.
-- Fence: none (creates a row that no one else sees yet).
-- Rows: 1 = the new job's id, and as text its run_at, created_at and expires_at; 0 = an unfinished job of its queue has its key.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_job (
    name, queue, priority, max_attempts, timeout_seconds, payload, headers, description, run_at,
    key, key_scope, unique_key, idempotency_key, limit_key, hold, cron_entry, fire_at, tags, deadline, expires_at,
    options
)
VALUES (
    %(name)s, %(queue)s, %(priority)s, %(max_attempts)s, %(timeout)s, %(payload)s::jsonb, %(headers)s::jsonb, %(description)s,
    coalesce(%(run_at)s::timestamptz, statement_timestamp()) + %(delay)s * interval '1 s',
    %(key)s::text, %(key_scope)s::text, CASE WHEN %(key_scope)s::text IN ('until_started', 'until_finished') THEN %(key)s::text END,
    %(idempotency_key)s::text, %(limit_key)s::text, CASE WHEN %(limit_key)s::text IS NOT NULL THEN 'limited' END,
    %(cron_entry)s::text, %(fire_at)s::timestamptz, %(tags)s::jsonb, %(deadline)s::timestamptz,
    -- Seconds count from the start that is asked for.
    coalesce(
        %(expires_at)s::timestamptz,
        coalesce(%(run_at)s::timestamptz, statement_timestamp()) + %(delay)s * interval '1 s'
            + %(expires_seconds)s::float8 * interval '1 s'
    ),
    %(options)s::jsonb
)
ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
RETURNING id, run_at::text, created_at::text, expires_at::text
