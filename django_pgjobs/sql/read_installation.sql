-- read_installation: which database this is, and which it was when it was declared or adopted.
-- Fence: none (reads).
-- Rows: 1 = both, the declared one null if nothing is declared, and whether its row is still the one that was written, not one restored from a dump.
-- Clock: none.
SELECT
    (SELECT system_identifier FROM pg_control_system())::text,
    (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
    current_database()::text,
    'pgjobs_job'::regclass::oid::bigint,
    current_setting('server_version_num')::integer / 10000,
    i.system, i.database_oid, i.database_name, i.table_oid, i.version, i.environment,
    i.xmin::text::bigint = i.written_in
FROM (SELECT 1) AS always
LEFT JOIN pgjobs_installation AS i ON i.id = 1
