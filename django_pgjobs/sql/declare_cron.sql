-- declare_cron: write a cron entry, as this code declares it, to its row; values of operators and the leader stay.
-- Fence: none (an upsert by name, of declared columns only).
-- Rows: 1 = created or changed; 0 = it is as declared, or other code declared it and it must not be overwritten, or a row of its name was made at run time.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_cron_entry AS e (
    name, job_name, declared_expression, declared_zone, declared_payload, declared_options, misfire, overlap
)
VALUES (
    %(name)s, %(job_name)s, %(expression)s, %(zone)s, %(payload)s::jsonb, %(options)s::jsonb, %(misfire)s, %(overlap)s
)
ON CONFLICT (name) DO UPDATE
SET job_name = excluded.job_name,
    declared_expression = excluded.declared_expression,
    declared_zone = excluded.declared_zone,
    declared_payload = excluded.declared_payload,
    declared_options = excluded.declared_options,
    misfire = excluded.misfire,
    overlap = excluded.overlap,
    declared_at = statement_timestamp(),
    missing_since = NULL,
    -- A new expression has no fires before its declaration, so it has missed none.
    in_force_since = CASE
        WHEN coalesce(e.expression, excluded.declared_expression) <> coalesce(e.expression, e.declared_expression)
          OR coalesce(e.zone, excluded.declared_zone) <> coalesce(e.zone, e.declared_zone)
        THEN statement_timestamp()
        ELSE e.in_force_since
    END,
    next_fire_at = CASE
        WHEN (e.declared_expression, e.declared_zone, e.misfire, e.overlap)
            = (excluded.declared_expression, excluded.declared_zone, excluded.misfire, excluded.overlap)
         AND e.missing_since IS NULL
        THEN e.next_fire_at
    END,
    check_at = statement_timestamp(),
    -- A new declaration counts as able to fire until that fails.
    broken = CASE
        WHEN (e.job_name, e.declared_payload, e.declared_options)
            = (excluded.job_name, excluded.declared_payload, excluded.declared_options)
        THEN e.broken
        ELSE ''
    END
WHERE e.origin = 'code'
  AND (
      e.missing_since IS NOT NULL
      OR CASE
          WHEN (
              e.job_name, e.declared_expression, e.declared_zone, e.declared_payload, e.declared_options, e.misfire,
              e.overlap
          ) = (
              excluded.job_name, excluded.declared_expression, excluded.declared_zone, excluded.declared_payload,
              excluded.declared_options, excluded.misfire, excluded.overlap
          )
          THEN e.declared_at < statement_timestamp() - make_interval(secs => %(fresh)s::float8)
          ELSE %(overwrite)s::boolean
            OR e.declared_at < statement_timestamp() - make_interval(secs => %(stale)s::float8)
      END
  )
RETURNING name
