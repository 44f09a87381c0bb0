-- refresh_crons: say that this code still has these cron entries.
-- Fence: none (writes when a declaration was seen last, and nothing else).
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
    -- What somebody else holds he has just refreshed, or fires; and nobody waits for locks in another order.
    FOR NO KEY UPDATE SKIP LOCKED
),
refreshed AS (
    UPDATE pgjobs_cron_entry AS e
    SET declared_at = statement_timestamp(), missing_since = NULL
    WHERE e.name = ANY (ARRAY (SELECT name FROM old))
)
SELECT e.name FROM pgjobs_cron_entry AS e WHERE e.name = ANY (%(names)s::text[])
