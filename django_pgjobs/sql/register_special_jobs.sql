-- register_special_jobs: insert many jobs, some with a key, a limit, a cron entry, tags, a deadline or another value that few jobs have, or that are part of a flow; the same statement takes the window of a key. The jobs of a kind share all but the columns.
-- Fence: none (creates rows that no one else sees yet).
-- Rows: 1 = an id for each job, in input order, those ids that were inserted, the others' keys being taken, and of the first job, as text, run_at, created_at and expires_at.
-- Clock: statement_timestamp().
WITH kinds AS MATERIALIZED (
    SELECT
        k.name, k.queue, k.priority, k.max_attempts, k.timeout, k.headers, k.description,
        coalesce(k.run_at, statement_timestamp()) + make_interval(secs => k.delay) AS run_at,
        k.key_scope, k.window_seconds AS seconds, k.cron_entry, k.fire_at, k.tags, k.deadline,
        coalesce(
            k.expires_at,
            coalesce(k.run_at, statement_timestamp()) + make_interval(secs => k.delay) + make_interval(secs => k.expires_seconds)
        ) AS expires_at,
        k.options, k.flow, k.parent_id, k.target_id, k.waits, k.kind
    FROM ROWS FROM (
        json_to_recordset(%(kinds)s::json) AS (
            name text, queue text, priority smallint, max_attempts integer, timeout float8,
            headers jsonb, description text, run_at timestamptz, delay float8,
            key_scope text, window_seconds float8, cron_entry text, fire_at timestamptz,
            tags jsonb, deadline timestamptz, expires_at timestamptz, expires_seconds float8, options jsonb,
            flow smallint, parent_id bigint, target_id bigint, waits boolean
        )
    ) WITH ORDINALITY AS k (
        name, queue, priority, max_attempts, timeout, headers, description, run_at, delay,
        key_scope, window_seconds, cron_entry, fire_at, tags, deadline, expires_at, expires_seconds, options,
        flow, parent_id, target_id, waits, kind
    )
),
given AS MATERIALIZED (
    SELECT
        n.id, n.payload, n.key, CASE WHEN kinds.key_scope IN ('until_started', 'until_finished') THEN n.key END AS unique_key,
        n.idempotency_key, n.limit_key, n.sequence, n.position,
        kinds.name, kinds.queue, kinds.priority, kinds.max_attempts, kinds.timeout, kinds.headers, kinds.description,
        kinds.run_at, kinds.key_scope, kinds.seconds, kinds.cron_entry, kinds.fire_at, kinds.tags, kinds.deadline,
        kinds.expires_at, kinds.options, kinds.flow, kinds.parent_id, kinds.target_id, kinds.waits
    FROM (
        -- Here, so that ids ascend in input order whatever the join does.
        SELECT
            coalesce(j.id::bigint, nextval((SELECT pg_get_serial_sequence('pgjobs_job', 'id')::regclass))) AS id,
            j.payload::jsonb AS payload, j.key, j.idempotency_key, j.limit_key, j.sequence, coalesce(j.kind::bigint, 1) AS kind, j.position
        FROM ROWS FROM (
            json_array_elements(%(payloads)s::json),
            json_array_elements_text(%(keys)s::json),
            json_array_elements_text(%(idempotency_keys)s::json),
            json_array_elements_text(%(limit_keys)s::json),
            json_array_elements_text(%(sequences)s::json),
            json_array_elements_text(%(ids)s::json),
            json_array_elements_text(%(kind_of)s::json)
        ) WITH ORDINALITY AS j (payload, key, idempotency_key, limit_key, sequence, id, kind, position)
    ) AS n
    FULL JOIN kinds ON kinds.kind = n.kind -- FULL, because such a join is never a nested loop
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
        options, flow, parent_id, target_id, sequence
    )
    SELECT
        id, name, queue, priority, max_attempts, timeout, payload, headers, description, run_at,
        key, key_scope, unique_key, idempotency_key, limit_key,
        CASE WHEN waits THEN 'blocked' WHEN limit_key IS NOT NULL THEN 'limited' END,
        cron_entry, fire_at, tags, deadline, expires_at, options, flow, parent_id, target_id, sequence
    FROM given
    WHERE seconds IS NULL OR id IN (SELECT job_id FROM windows)
    ORDER BY queue COLLATE "C", unique_key COLLATE "C", position
    ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
    RETURNING id
)
SELECT
    ARRAY(SELECT id FROM given ORDER BY position), ARRAY(SELECT id FROM inserted),
    first.run_at::text, statement_timestamp()::text, first.expires_at::text
FROM (SELECT run_at, expires_at FROM given ORDER BY position LIMIT 1) AS first
