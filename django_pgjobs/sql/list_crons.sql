-- list_crons: cron entries that may fire: those due now, those late, those not planned yet, those asked for by name, and with everything a slice of all by name.
-- Fence: none (a plain read).
-- Rows: at most as many of each kind as asked for, by name, with the time of this statement, the state of the entry's last job, and whether it is of the slice.
-- Clock: statement_timestamp().
WITH due AS MATERIALIZED (
    SELECT found.name
    FROM (
        -- Each kind for itself: a thousand that are late must hide neither one that is due nor one that fires once.
        VALUES
        (statement_timestamp() - make_interval(secs => %(grace)s::float8), statement_timestamp(), NULL),
        ('-infinity', statement_timestamp() - make_interval(secs => %(grace)s::float8), false),
        ('-infinity', statement_timestamp() - make_interval(secs => %(grace)s::float8), true)
    ) AS kind (after, until, makes_all),
    LATERAL (
        SELECT e.name
        FROM pgjobs_cron_entry AS e
        WHERE e.next_fire_at > kind.after
          AND e.next_fire_at <= kind.until
          AND (kind.makes_all IS NULL OR (left(e.misfire, 3) = 'all') = kind.makes_all)
          AND e.broken = ''
          AND e.name <> ALL (%(excluded)s::text[])
          AND e.enabled
          AND (e.missing_since IS NULL OR e.origin = 'row')
          AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
          AND (e.max_fires IS NULL OR e.fires_made < e.max_fires)
        ORDER BY e.next_fire_at
        LIMIT %(most)s::bigint
    ) AS found
),
unplanned AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.next_fire_at IS NULL
      AND e.broken = ''
      AND e.check_at <= statement_timestamp()
      AND e.name <> ALL (%(excluded)s::text[])
      AND e.enabled
      AND (e.missing_since IS NULL OR e.origin = 'row')
      AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
      AND (e.max_fires IS NULL OR e.fires_made < e.max_fires)
      -- Its next fire is computed once its job has ended. With LIMIT: otherwise a plan made while the table was empty reads all of it.
      AND (
          e.overlap <> 'after_completion'
          OR (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL LIMIT 1) IS NULL
      )
    ORDER BY e.check_at
    LIMIT %(most)s::bigint
),
slice AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE %(everything)s::boolean
      AND e.name > %(beyond)s::text
      AND e.enabled
      AND (e.missing_since IS NULL OR e.origin = 'row')
      AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
      AND (e.max_fires IS NULL OR e.fires_made < e.max_fires)
    ORDER BY e.name
    LIMIT %(most)s::bigint
),
chosen AS MATERIALIZED (
    SELECT name FROM due
    UNION
    SELECT name FROM unplanned
    UNION
    SELECT name FROM slice
    UNION
    SELECT unnest(%(pending)s::text[])
)
SELECT
    e.name, e.job_name, coalesce(e.expression, e.declared_expression), coalesce(e.zone, e.declared_zone), e.misfire, e.overlap,
    e.broken, e.created_at, e.in_force_since, e.last_fire_at, e.last_job_id, e.next_fire_at, e.paused_until,
    statement_timestamp(),
    e.overlap <> 'allow'
    AND (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL LIMIT 1) IS NOT NULL,
    (SELECT j.finished_at FROM pgjobs_job AS j WHERE j.id = e.last_job_id),
    e.starts_at, e.ends_at, e.name = ANY (ARRAY (SELECT name FROM slice))
FROM pgjobs_cron_entry AS e
WHERE e.name = ANY (ARRAY (SELECT name FROM chosen)) -- a join planned while the table was empty would compare all with all
  AND e.enabled
  AND (e.missing_since IS NULL OR e.origin = 'row')
  AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
  AND (e.max_fires IS NULL OR e.fires_made < e.max_fires)
ORDER BY e.name
