-- register_special_jobs: insert many jobs, some with a key, a limit, a cron entry, tags, a deadline or another value that few jobs have, or that are part of a flow; the same statement takes the window of a key.
-- Fence: none (creates rows that no one else sees yet).
-- Rows: one per job: its position in the input, id, and as text its run_at, created_at and expires_at; no id if its key is taken.
-- Clock: statement_timestamp().
WITH given AS MATERIALIZED (
    SELECT
        n.name, n.queue, n.priority, n.max_attempts, n.timeout, n.payload, n.headers, n.description,
        coalesce(n.run_at, statement_timestamp()) + make_interval(secs => n.delay) AS run_at,
        n.key, n.key_scope, CASE WHEN n.key_scope IN ('until_started', 'until_finished') THEN n.key END AS unique_key,
        n.window_seconds AS seconds, n.idempotency_key, n.limit_key, n.cron_entry, n.fire_at, n.tags, n.deadline,
        coalesce(
            n.expires_at,
            coalesce(n.run_at, statement_timestamp()) + make_interval(secs => n.delay) + make_interval(secs => n.expires_seconds)
        ) AS expires_at,
        n.options, n.flow, n.parent_id, n.target_id, n.waits, n.position,
        coalesce(n.id, nextval(pg_get_serial_sequence('pgjobs_job', 'id')::regclass)) AS id
    FROM ROWS FROM (
        json_to_recordset(%(jobs)s::json) AS (
            name text, queue text, priority smallint, max_attempts integer, timeout float8,
            payload jsonb, headers jsonb, description text, run_at timestamptz, delay float8,
            key text, key_scope text, window_seconds float8, idempotency_key text, limit_key text, cron_entry text, fire_at timestamptz,
            tags jsonb, deadline timestamptz, expires_at timestamptz, expires_seconds float8, options jsonb,
            flow smallint, parent_id bigint, target_id bigint, waits boolean, id bigint
        )
    ) WITH ORDINALITY AS n (
        name, queue, priority, max_attempts, timeout, payload, headers, description, run_at, delay,
        key, key_scope, window_seconds, idempotency_key, limit_key, cron_entry, fire_at, tags, deadline, expires_at,
        expires_seconds, options, flow, parent_id, target_id, waits, id, position
    )
),
windows AS (
    INSERT INTO pgjobs_key_window (queue, key, begins_at, ends_at, job_id)
    SELECT
        queue, key,
        date_bin(make_interval(secs => seconds), statement_timestamp(), 'epoch'::timestamptz),
        date_bin(make_interval(secs => seconds), statement_timestamp(), 'epoch'::timestamptz) + make_interval(secs => seconds),
        id
    FROM given
    WHERE seconds IS NOT NULL
    ORDER BY queue COLLATE "C", key COLLATE "C", position
    ON CONFLICT DO NOTHING
    RETURNING job_id
),
inserted AS (
    INSERT INTO pgjobs_job (
        id, name, queue, priority, max_attempts, timeout_seconds, payload, headers, description, run_at,
        key, key_scope, unique_key, idempotency_key, limit_key, hold, cron_entry, fire_at, tags, deadline, expires_at,
        options, flow, parent_id, target_id
    )
    SELECT
        id, name, queue, priority, max_attempts, timeout, payload, headers, description, run_at,
        key, key_scope, unique_key, idempotency_key, limit_key,
        CASE WHEN waits THEN 'blocked' WHEN limit_key IS NOT NULL THEN 'limited' END,
        cron_entry, fire_at, tags, deadline, expires_at, options, flow, parent_id, target_id
    FROM given
    WHERE seconds IS NULL OR id IN (SELECT job_id FROM windows)
    ORDER BY queue COLLATE "C", unique_key COLLATE "C", position
    ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
    RETURNING id, run_at, created_at, expires_at
)
SELECT given.position, inserted.id, inserted.run_at::text, inserted.created_at::text, inserted.expires_at::text
FROM given
FULL JOIN inserted ON inserted.id = given.id -- FULL, because such a join is never a nested loop
