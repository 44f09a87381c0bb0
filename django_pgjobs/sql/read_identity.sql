-- read_identity: which database, and which table in it, this connection sees, and settings of its server.
-- Fence: none (reads).
-- Rows: 1; the table is null if it is not migrated as far as this code needs, which its latest objects show.
-- Clock: none.
SELECT
    (SELECT system_identifier FROM pg_control_system())::text,
    (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
    (
        SELECT indrelid FROM pg_index
        WHERE indrelid = to_regclass('pgjobs_job') AND indexrelid = to_regclass('pgjobs_job_unique_key') AND indisvalid
          AND EXISTS (
              SELECT FROM pg_attribute
              WHERE attrelid = to_regclass('pgjobs_job') AND attname = 'error_class' AND NOT attisdropped
          )
    )::bigint,
    pg_backend_pid(),
    current_setting('max_connections')::integer,
    extract(epoch FROM current_setting('deadlock_timeout')::interval)::float8
