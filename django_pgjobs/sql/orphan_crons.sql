-- orphan_crons: mark as broken the schedules made at run time whose job no worker's code knows, unless they are new.
-- Fence: none (a worker that knows the job checks them again).
-- Rows: one per schedule marked, at most as many as asked for, its name.
-- Clock: statement_timestamp().
WITH lost AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.origin = 'row' AND e.job_name = %(job_name)s::text AND e.fingerprint > ''
      AND e.declared_at < statement_timestamp() - make_interval(secs => %(older)s::float8)
    LIMIT %(most)s::bigint
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE pgjobs_cron_entry AS e
SET fingerprint = '', broken = %(reason)s::text, next_fire_at = NULL
WHERE e.name = ANY (ARRAY (SELECT name FROM lost))
RETURNING e.name
