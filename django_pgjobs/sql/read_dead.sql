-- read_dead: how much of a table has died and is alive, and whether this role may VACUUM it.
-- Fence: none (reads).
-- Rows: 1 = the rows that are dead, those that are not, whether VACUUM is allowed, the table's owner; 0 = no such table.
-- Clock: none.
SELECT
    pg_stat_get_dead_tuples(c.oid),
    greatest(c.reltuples::float8, pg_stat_get_live_tuples(c.oid)::float8),
    pg_has_role(c.relowner, 'USAGE')
    OR (SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database AS d WHERE d.datname = current_database())
    OR CASE
        WHEN current_setting('server_version_num')::integer >= 170000 THEN has_table_privilege(c.oid, 'MAINTAIN')
        ELSE false
    END,
    pg_get_userbyid(c.relowner)::text
FROM pg_class AS c
WHERE c.oid = to_regclass(%(table)s)
