-- plan_cron: store when a cron entry fires next, and that a fire was skipped.
-- Fence: none (compare-and-set on the last fire; an entry that is locked or has changed is checked again).
-- Rows: 1 = stored; 0 = it changed since it was read.
-- Clock: statement_timestamp().
UPDATE pgjobs_cron_entry AS e
SET next_fire_at = %(upcoming)s::timestamptz,
    check_at = CASE
        WHEN %(upcoming)s::timestamptz IS NULL THEN statement_timestamp() + make_interval(secs => %(again)s::float8)
        ELSE e.check_at
    END,
    last_fire_at = coalesce(%(skipped)s::timestamptz, e.last_fire_at)
WHERE e.name = ANY (ARRAY (
    SELECT locked.name
    FROM pgjobs_cron_entry AS locked
    WHERE locked.name = %(name)s::text
      AND locked.last_fire_at IS NOT DISTINCT FROM %(last_fire_at)s::timestamptz
      AND locked.last_job_id IS NOT DISTINCT FROM %(last_job_id)s::bigint
      AND coalesce(locked.expression, locked.declared_expression) = %(expression)s::text
      AND coalesce(locked.zone, locked.declared_zone) = %(zone)s::text
      AND locked.starts_at IS NOT DISTINCT FROM %(starts_at)s::timestamptz
      AND locked.ends_at IS NOT DISTINCT FROM %(ends_at)s::timestamptz
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING e.name
