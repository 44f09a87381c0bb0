-- run_cron: insert a job of a cron entry now, on request; its fires stay as they are.
-- Fence: none (creates a row that nobody knows yet; lock_cron holds the entry's row, so no fire comes between).
-- Rows: 1 = whether an unfinished job forbids it, the job's id, null if forbidden or if its key is taken, and the workers to wake (no priority: admitters); 0 = no such entry.
-- Clock: statement_timestamp().
WITH picked AS MATERIALIZED (
    SELECT
        e.name, e.job_name, coalesce(e.payload, e.declared_payload) AS payload, e.payload IS NULL AS as_declared,
        e.declared_options AS options,
        e.overlap <> 'allow'
        AND EXISTS (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL) AS busy
    FROM pgjobs_cron_entry AS e
    WHERE e.name = %(name)s::text
),
registered AS (
    INSERT INTO pgjobs_job (
        name, queue, priority, max_attempts, timeout_seconds, payload, description, run_at,
        key, key_scope, unique_key, idempotency_key, limit_key, hold, cron_entry, fire_at, tags, expires_at, options
    )
    SELECT
        p.job_name, o.queue, o.priority, o.max_attempts, o.timeout_seconds, p.payload,
        CASE WHEN p.as_declared THEN o.description ELSE '' END, statement_timestamp(),
        o.key, o.key_scope, CASE WHEN o.key_scope IN ('until_started', 'until_finished') THEN o.key END,
        o.idempotency_key, o.limit_key, CASE WHEN o.limit_key IS NOT NULL THEN 'limited' END, p.name, statement_timestamp(),
        o.tags, statement_timestamp() + make_interval(secs => o.expires_seconds), o.options
    FROM picked AS p,
    LATERAL jsonb_to_record(p.options) AS o (
        queue text, priority smallint, max_attempts integer, timeout_seconds float8, description text, key text, key_scope text,
        idempotency_key text, limit_key text, tags jsonb, expires_seconds float8, options jsonb
    )
    WHERE NOT p.busy
    ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
    RETURNING id, queue, CASE WHEN hold IS NULL THEN priority END AS priority
),
marked AS (
    UPDATE pgjobs_cron_entry AS e
    SET last_job_id = coalesce((SELECT id FROM registered), e.last_job_id),
        next_fire_at = CASE WHEN e.overlap <> 'after_completion' THEN e.next_fire_at END,
        check_at = statement_timestamp()
    WHERE e.name = (SELECT name FROM picked)
)
SELECT p.busy, r.id, r.queue, r.priority FROM picked AS p LEFT JOIN registered AS r ON true
