-- read_bounds: how many connections the server, the database and the role allow, and how many others than workers have.
-- Fence: none (reads).
-- Rows: one per bound that is set: of what, the number, and the connections of others that count there.
-- Clock: none.
SELECT
    b.kind,
    b.most,
    (
        SELECT count(*)
        FROM pg_stat_activity AS a
        WHERE a.datid IS NOT NULL
          AND a.pid <> pg_backend_pid()
          AND left(coalesce(a.application_name, ''), 7) <> 'pgjobs '
          AND (b.kind <> 'DATABASE' OR a.datname = current_database())
          AND (b.kind <> 'ROLE' OR a.usename = current_user)
    )
FROM (
    SELECT
        'SYSTEM' AS kind,
        current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
            - coalesce(current_setting('reserved_connections', true)::integer, 0) AS most
    UNION ALL
    SELECT 'DATABASE', d.datconnlimit FROM pg_database AS d WHERE d.datname = current_database()
    UNION ALL
    SELECT 'ROLE', r.rolconnlimit FROM pg_roles AS r WHERE r.rolname = current_user
) AS b
WHERE b.most >= 0
ORDER BY b.most
