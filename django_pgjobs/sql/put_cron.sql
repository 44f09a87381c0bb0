-- put_cron: write a schedule made at run time to its row; one that says the same stays as it is, unless it is broken.
-- Fence: none (an upsert by name; an entry that code declares is left alone).
-- Rows: 1 = whether it is new; 0 = unchanged, or code declares an entry of this name.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_cron_entry AS e (
    name, origin, job_name, declared_expression, declared_zone, declared_payload, declared_options, misfire, overlap, enabled,
    starts_at, ends_at, max_fires, fingerprint, check_at
)
VALUES (
    %(name)s::text, 'row', %(job_name)s, %(expression)s, %(zone)s, %(payload)s::jsonb, %(options)s::jsonb, %(misfire)s,
    %(overlap)s, %(enabled)s::boolean, %(starts_at)s::timestamptz, %(ends_at)s::timestamptz, %(max_fires)s::integer,
    %(fingerprint)s, statement_timestamp()
)
ON CONFLICT (name) DO UPDATE
SET job_name = excluded.job_name,
    declared_expression = excluded.declared_expression,
    declared_zone = excluded.declared_zone,
    declared_payload = excluded.declared_payload,
    declared_options = excluded.declared_options,
    misfire = excluded.misfire,
    overlap = excluded.overlap,
    enabled = excluded.enabled,
    starts_at = excluded.starts_at,
    ends_at = excluded.ends_at,
    max_fires = excluded.max_fires,
    fingerprint = excluded.fingerprint,
    declared_at = statement_timestamp(),
    missing_since = NULL,
    broken = '',
    next_fire_at = NULL,
    check_at = statement_timestamp(),
    -- A new schedule has no fires before its change, so it has missed none, and has made none.
    in_force_since = CASE
        WHEN (e.declared_expression, e.declared_zone, e.enabled, e.starts_at, e.ends_at, e.max_fires)
            IS DISTINCT FROM (
                excluded.declared_expression, excluded.declared_zone, excluded.enabled, excluded.starts_at, excluded.ends_at,
                excluded.max_fires
            )
        THEN statement_timestamp()
        ELSE e.in_force_since
    END,
    fires_made = CASE
        WHEN (e.declared_expression, e.declared_zone, e.starts_at, e.ends_at, e.max_fires)
            IS DISTINCT FROM (
                excluded.declared_expression, excluded.declared_zone, excluded.starts_at, excluded.ends_at, excluded.max_fires
            )
        THEN 0
        ELSE e.fires_made
    END
WHERE e.origin = 'row'
  AND (
      (
          e.job_name, e.declared_expression, e.declared_zone, e.declared_payload, e.declared_options, e.misfire, e.overlap, e.enabled,
          e.starts_at, e.ends_at, e.max_fires
      ) IS DISTINCT FROM (
          excluded.job_name, excluded.declared_expression, excluded.declared_zone, excluded.declared_payload,
          excluded.declared_options, excluded.misfire, excluded.overlap, excluded.enabled, excluded.starts_at, excluded.ends_at,
          excluded.max_fires
      )
      OR e.broken <> '' -- who registers has code that knows the job, and arguments that fit it
  )
RETURNING e.xmax = 0
