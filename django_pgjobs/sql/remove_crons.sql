-- remove_crons: delete cron entries, unless code still declares one of them.
-- Fence: none (a declared entry would come back; its name is returned instead).
-- Rows: one per entry that there is: its name, and whether it may be deleted; they are deleted if all may.
-- Clock: none.
WITH chosen AS MATERIALIZED (
    SELECT e.name, e.origin = 'row' OR e.missing_since IS NOT NULL AS free
    FROM pgjobs_cron_entry AS e
    WHERE e.name = ANY (%(names)s::text[])
    ORDER BY e.name
    FOR UPDATE OF e
),
gone AS (
    DELETE FROM pgjobs_cron_entry AS e
    WHERE e.name = ANY (ARRAY (SELECT name FROM chosen)) AND (SELECT bool_and(free) FROM chosen)
    RETURNING e.name
)
SELECT c.name, c.free FROM chosen AS c
