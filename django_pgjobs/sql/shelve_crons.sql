-- shelve_crons: put aside cron entries that are due or not planned but may not fire, so that they are left alone until that changes.
-- Fence: none (each change that lets an entry fire again also has it read again, and the leader reads each entry in time).
-- Rows: one per entry put aside, its name.
-- Clock: statement_timestamp().
WITH waiting AS MATERIALIZED (
    (
        SELECT e.name
        FROM pgjobs_cron_entry AS e
        WHERE e.next_fire_at <= statement_timestamp()
        ORDER BY e.next_fire_at
        LIMIT %(most)s::bigint
    )
    UNION ALL
    (
        SELECT e.name
        FROM pgjobs_cron_entry AS e
        WHERE e.next_fire_at IS NULL AND e.broken = '' AND e.check_at <= statement_timestamp()
        ORDER BY e.check_at
        LIMIT %(most)s::bigint
    )
),
locked AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.name = ANY (ARRAY (SELECT name FROM waiting))
      AND (
          NOT e.enabled
          OR (e.missing_since IS NOT NULL AND e.origin <> 'row')
          OR (e.paused_at IS NOT NULL AND (e.paused_until IS NULL OR e.paused_until > statement_timestamp()))
          OR e.fires_made >= e.max_fires
      )
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE pgjobs_cron_entry AS e
SET next_fire_at = NULL,
    check_at = least(
        CASE WHEN e.paused_until > statement_timestamp() THEN e.paused_until END,
        statement_timestamp() + make_interval(secs => %(seconds)s::float8)
    )
WHERE e.name = ANY (ARRAY (SELECT name FROM locked))
RETURNING e.name
