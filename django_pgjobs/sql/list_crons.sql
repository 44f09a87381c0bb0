-- list_crons: the cron entries that may fire: those that are due or not planned yet, or all of them.
-- Fence: none (a plain read).
-- Rows: one per entry that is neither paused nor missing, with the time of this statement and the state of its last job.
-- Clock: statement_timestamp().
SELECT
    e.name, e.job_name, coalesce(e.expression, e.declared_expression), coalesce(e.zone, e.declared_zone), e.misfire, e.overlap,
    e.broken, e.created_at, e.in_force_since, e.last_fire_at, e.last_job_id, e.next_fire_at, e.paused_until,
    statement_timestamp(),
    e.overlap <> 'allow'
    -- With LIMIT: otherwise a plan made while the table was empty reads all of it.
    AND (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL LIMIT 1) IS NOT NULL,
    (SELECT j.finished_at FROM pgjobs_job AS j WHERE j.id = e.last_job_id)
FROM pgjobs_cron_entry AS e
WHERE e.missing_since IS NULL
  AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
  AND (
      %(everything)s::boolean
      OR (e.broken = '' AND (e.next_fire_at IS NULL OR e.next_fire_at <= statement_timestamp()))
  )
