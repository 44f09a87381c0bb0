-- break_cron: write on a cron entry why it cannot fire, or that it can again.
-- Fence: none (an entry that has been changed since it was read is looked at again).
-- Rows: 1 = written; 0 = it is not as it was read, or held by somebody.
-- Clock: none.
UPDATE pgjobs_cron_entry AS e
SET broken = %(reason)s::text, next_fire_at = NULL
WHERE e.name = ANY (ARRAY (
    SELECT held.name
    FROM pgjobs_cron_entry AS held
    WHERE held.name = %(name)s::text
      AND coalesce(held.expression, held.declared_expression) = %(expression)s::text
      AND coalesce(held.zone, held.declared_zone) = %(zone)s::text
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING e.name
