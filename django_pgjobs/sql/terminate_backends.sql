-- terminate_backends: end the server processes that a killed executor has left behind.
-- Fence: none (backends, not rows; only those of this database).
-- Rows: one per backend.
-- Clock: none.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE pid = ANY (%(pids)s::integer[]) AND datname = current_database()
