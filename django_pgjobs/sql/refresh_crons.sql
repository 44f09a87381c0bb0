-- refresh_crons: record that this code still declares these cron entries.
-- Fence: none (writes the time of the latest declaration, and nothing else).
-- Rows: the entries that have a row, and whether it was made at run time.
-- Clock: statement_timestamp().
WITH old AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.name = ANY (%(names)s::text[])
      AND e.origin = 'code'
      AND (
          e.missing_since IS NOT NULL
          OR e.declared_at < statement_timestamp() - make_interval(secs => %(fresh)s::float8)
      )
    -- The holder of a row has just refreshed it or fires it; skipping it avoids lock waits in another order.
    FOR NO KEY UPDATE SKIP LOCKED
),
refreshed AS (
    UPDATE pgjobs_cron_entry AS e
    SET declared_at = statement_timestamp(),
        missing_since = NULL,
        next_fire_at = CASE WHEN e.missing_since IS NULL THEN e.next_fire_at END,
        check_at = CASE WHEN e.missing_since IS NULL THEN e.check_at ELSE statement_timestamp() END
    WHERE e.name = ANY (ARRAY (SELECT name FROM old))
)
SELECT e.name, e.origin = 'row' FROM pgjobs_cron_entry AS e WHERE e.name = ANY (%(names)s::text[])
