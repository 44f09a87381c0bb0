-- mark_missing_crons: mark cron entries that the caller has picked and locked: no worker's code has declared them for long. They fire again once one does.
-- Fence: none (another worker that declares one clears it).
-- Rows: one per entry marked now, its name and its job's.
-- Clock: statement_timestamp().
UPDATE pgjobs_cron_entry AS e
SET missing_since = statement_timestamp()
WHERE e.name = ANY (%(names)s::text[]) AND e.missing_since IS NULL
RETURNING e.name, e.job_name
