-- refresh_crons: record that this code still declares these cron entries.
-- Fence: none (writes the time of the latest declaration, and nothing else).
-- Rows: the entries that have a row.
-- Clock: statement_timestamp().
WITH old AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.name = ANY (%(names)s::text[])
      AND (
          e.missing_since IS NOT NULL
          OR e.declared_at < statement_timestamp() - make_interval(secs => %(fresh)s::float8)
      )
    -- Whoever holds a row has just refreshed or fires it; skipping it avoids lock waits in another order.
    FOR NO KEY UPDATE SKIP LOCKED
),
refreshed AS (
    UPDATE pgjobs_cron_entry AS e
    SET declared_at = statement_timestamp(), missing_since = NULL
    WHERE e.name = ANY (ARRAY (SELECT name FROM old))
)
SELECT e.name FROM pgjobs_cron_entry AS e WHERE e.name = ANY (%(names)s::text[])
