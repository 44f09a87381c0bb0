-- plan_cron: store when a cron entry fires next, and that a fire is dealt with without a job.
-- Fence: none (compare-and-set on the last fire; an entry that somebody holds or has changed is looked at again).
-- Rows: 1 = stored; 0 = it is not as it was read.
-- Clock: none.
UPDATE pgjobs_cron_entry AS e
SET next_fire_at = %(upcoming)s::timestamptz,
    last_fire_at = coalesce(%(left_out)s::timestamptz, e.last_fire_at)
WHERE e.name = ANY (ARRAY (
    SELECT held.name
    FROM pgjobs_cron_entry AS held
    WHERE held.name = %(name)s::text
      AND held.last_fire_at IS NOT DISTINCT FROM %(last_fire_at)s::timestamptz
      AND held.last_job_id IS NOT DISTINCT FROM %(last_job_id)s::bigint
      AND coalesce(held.expression, held.declared_expression) = %(expression)s::text
      AND coalesce(held.zone, held.declared_zone) = %(zone)s::text
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING e.name
