-- read_notification_queue: how full the server's queue of notifications is; full, it refuses every NOTIFY.
-- Fence: none (reads).
-- Rows: 1 = the share, from 0 to 1.
-- Clock: none.
SELECT pg_notification_queue_usage()::float8
