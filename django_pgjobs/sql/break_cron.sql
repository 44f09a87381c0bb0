-- break_cron: store on a cron entry why it cannot fire, or that it can again.
-- Fence: none (an entry that changed since it was read is checked again).
-- Rows: 1 = written; 0 = it changed since it was read, or is locked.
-- Clock: none.
UPDATE pgjobs_cron_entry AS e
SET broken = %(reason)s::text, next_fire_at = NULL
WHERE e.name = ANY (ARRAY (
    SELECT locked.name
    FROM pgjobs_cron_entry AS locked
    WHERE locked.name = %(name)s::text
      AND coalesce(locked.expression, locked.declared_expression) = %(expression)s::text
      AND coalesce(locked.zone, locked.declared_zone) = %(zone)s::text
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING e.name
