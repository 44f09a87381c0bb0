-- read_dead: how many rows of a table are dead and live, whether this role may VACUUM it, and how often that was done.
-- Fence: none (reads).
-- Rows: 1 = dead rows, live rows, whether VACUUM is allowed, the owner, the number of VACUUMs; 0 = no such table.
-- Clock: none.
SELECT
    pg_stat_get_dead_tuples(c.oid),
    greatest(c.reltuples::float8, pg_stat_get_live_tuples(c.oid)::float8),
    -- The server's own rule. From PostgreSQL 17 on an owner may have lost the privilege, and is skipped like any other role.
    CASE
        WHEN current_setting('server_version_num')::integer >= 170000 THEN has_table_privilege(c.oid, 'MAINTAIN')
        ELSE pg_has_role(c.relowner, 'USAGE')
    END
    OR (SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database AS d WHERE d.datname = current_database()),
    pg_get_userbyid(c.relowner)::text,
    pg_stat_get_vacuum_count(c.oid)
FROM pg_class AS c
WHERE c.oid = to_regclass(%(table)s)
