-- read_identity: which database, and which table in it, this connection sees, settings of its server, and whether it has Citus.
-- Fence: none (reads).
-- Rows: 1; the table is null if it is not migrated as far as this code needs, which its latest object shows.
-- Clock: none.
SELECT
    (SELECT system_identifier FROM pg_control_system())::text,
    (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
    to_regclass('pgjobs_job')::oid::bigint,
    pg_backend_pid(),
    current_setting('max_connections')::integer,
    extract(epoch FROM current_setting('deadlock_timeout')::interval)::float8,
    to_regclass('pg_dist_partition') IS NOT NULL
