-- fire_cron: mark fires of a cron entry, in order, as made and insert their jobs, all or none; or run it now, on request: insert a job, and leave the fires.
-- Fence: none (compare-and-set on the last fire and the last job: the second of two leaders matches no row; for a run now, lock_cron holds the row).
-- Rows: one per job wanted, with its fire, its id, null if an unfinished job has its key, and the workers to wake (no priority: admitters); 0 = another was first, it may not fire, or there is none. A run now that an unfinished job forbids: one that says busy.
-- Clock: statement_timestamp().
WITH picked AS MATERIALIZED (
    SELECT e.name, e.job_name, coalesce(e.payload, e.declared_payload) AS payload, e.payload IS NULL AS as_declared,
        e.declared_options AS options, e.starts_at, e.ends_at, e.overlap, e.max_fires, e.fires_made,
        -- With LIMIT: otherwise a plan made while the table was empty reads all of it.
        e.overlap <> 'allow'
        AND (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL LIMIT 1) IS NOT NULL AS busy,
        -- Hazard: an insert waits for an uncommitted job with its key, and rescue comes after this in the same thread.
        CASE WHEN NOT %(run_now)s::boolean THEN set_config('lock_timeout', '250ms', true) END
    FROM pgjobs_cron_entry AS e
    WHERE e.name = %(name)s::text
      AND (
          %(run_now)s::boolean
          OR e.broken = %(broken)s::text
          AND e.last_fire_at IS NOT DISTINCT FROM %(last_fire_at)s::timestamptz
          AND e.last_job_id IS NOT DISTINCT FROM %(last_job_id)s::bigint
          AND coalesce(e.expression, e.declared_expression) = %(expression)s::text
          AND coalesce(e.zone, e.declared_zone) = %(zone)s::text
          AND e.enabled
          AND (e.missing_since IS NULL OR e.origin = 'row')
          AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
      )
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
made AS MATERIALIZED (
    SELECT statement_timestamp() AS fire_at
    FROM picked AS e
    WHERE %(run_now)s::boolean AND NOT e.busy
    UNION ALL
    SELECT given.fire_at
    FROM picked AS e, unnest(%(fires)s::timestamptz[]) WITH ORDINALITY AS given (fire_at, n)
    -- Nothing fires early, even if the leader's clock is fast.
    WHERE given.fire_at <= statement_timestamp()
      AND (e.starts_at IS NULL OR e.starts_at <= given.fire_at)
      AND (e.ends_at IS NULL OR e.ends_at >= given.fire_at)
      AND (e.max_fires IS NULL OR e.fires_made + given.n <= e.max_fires)
      AND (e.overlap = 'allow' OR given.n = 1)
      AND NOT e.busy
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
        o.idempotency_key, o.limit_key, CASE WHEN o.limit_key IS NOT NULL THEN 'limited' END, p.name, made.fire_at,
        o.tags, statement_timestamp() + make_interval(secs => o.expires_seconds), o.options
    FROM made, picked AS p,
    LATERAL jsonb_to_record(p.options) AS o (
        queue text, priority smallint, max_attempts integer, timeout_seconds float8, description text, key text, key_scope text,
        idempotency_key text, limit_key text, tags jsonb, expires_seconds float8, options jsonb
    )
    ORDER BY made.fire_at
    ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
    RETURNING
        id, fire_at, queue, CASE WHEN hold IS NULL THEN priority END AS priority,
        CASE
            WHEN %(notify)s::boolean
            THEN pg_notify('pgjobs', CASE WHEN hold IS NULL THEN priority::text ELSE 'limited' END || ':' || queue)
        END AS notified
),
marked AS (
    UPDATE pgjobs_cron_entry AS e
    SET last_job_id = coalesce((SELECT max(id) FROM registered), e.last_job_id),
        last_fire_at = CASE WHEN %(run_now)s::boolean THEN e.last_fire_at ELSE (SELECT max(fire_at) FROM made) END,
        fires_made = e.fires_made + (SELECT count(*) FROM made WHERE NOT %(run_now)s::boolean),
        next_fire_at = CASE
            WHEN NOT %(run_now)s::boolean
            THEN coalesce(
                (
                    SELECT min(given.fire_at)
                    FROM unnest(%(fires)s::timestamptz[]) AS given (fire_at)
                    WHERE given.fire_at > (SELECT max(fire_at) FROM made)
                ),
                %(upcoming)s::timestamptz
            )
            WHEN e.overlap <> 'after_completion'
            THEN e.next_fire_at
        END,
        check_at = CASE WHEN %(run_now)s::boolean THEN statement_timestamp() ELSE e.check_at END,
        -- A fire clears the reason why an entry could not fire.
        broken = CASE WHEN %(run_now)s::boolean THEN e.broken ELSE '' END
    WHERE e.name = (SELECT name FROM picked WHERE %(run_now)s::boolean OR EXISTS (SELECT FROM made))
    RETURNING e.name
)
SELECT p.busy, made.fire_at, r.id, r.queue, r.priority, r.notified
FROM marked
CROSS JOIN picked AS p
LEFT JOIN made ON true
LEFT JOIN registered AS r ON r.fire_at = made.fire_at
ORDER BY made.fire_at
