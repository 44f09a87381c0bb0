-- read_identity: which database, and which table in it, this connection sees.
-- Fence: none (reads).
-- Rows: 1; the table is null when it has not been migrated, or not as far as this code needs: the index and the table made last tell.
-- Clock: none.
SELECT
    (SELECT system_identifier FROM pg_control_system())::text,
    (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
    (
        SELECT indrelid FROM pg_index
        WHERE indrelid = to_regclass('pgjobs_job') AND indexrelid = to_regclass('pgjobs_job_unique_key') AND indisvalid
          AND to_regclass('pgjobs_action_part') IS NOT NULL
    )::bigint,
    pg_backend_pid(),
    current_setting('max_connections')::integer
