-- terminate_backends: terminate the server processes that a killed executor has left behind.
-- Fence: none (backends, not rows; the name belongs to one executor process alone).
-- Rows: one per backend that still exists; it gets a signal, and ends a moment later. 0 = all have ended.
-- Clock: none.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE application_name = %(application_name)s AND datname = current_database() AND usename = current_user
