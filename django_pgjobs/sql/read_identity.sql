-- read_identity: which database, and which table in it, this connection sees.
-- Fence: none (reads).
-- Rows: 1; the table is null when it has not been migrated.
-- Clock: none.
SELECT
    (SELECT system_identifier FROM pg_control_system())::text,
    (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
    to_regclass('pgjobs_job')::oid::bigint,
    pg_backend_pid(),
    current_setting('max_connections')::integer
