-- mark_missing_crons: mark cron entries that no worker's code has declared for so long; they do not fire until one does.
-- Fence: none (another worker that declares one clears it).
-- Rows: one per entry marked now, its name and its job's.
-- Clock: statement_timestamp().
WITH old AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.missing_since IS NULL
      AND e.declared_at < statement_timestamp() - make_interval(secs => %(missing)s::float8)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgjobs_cron_entry AS e
SET missing_since = statement_timestamp()
WHERE e.name = ANY (ARRAY (SELECT name FROM old))
RETURNING e.name, e.job_name
