-- read_server: the server, the database and the role of this connection, and whether it takes writes.
-- Fence: none (reads).
-- Rows: 1; names are quoted where SQL needs that.
-- Clock: statement_timestamp().
SELECT
    extract(epoch FROM statement_timestamp())::float8,
    pg_backend_pid(),
    current_setting('server_version_num')::integer / 10000,
    quote_ident(current_database()),
    quote_ident(current_user),
    pg_is_in_recovery()
