-- read_pauses: which queues and which names of jobs are paused now. The table is nearly always empty.
-- Fence: none (reads).
-- Rows: one per queue or name.
-- Clock: statement_timestamp().
SELECT kind, name, left(paused_by, 200), left(reason, 500)
FROM pgjobs_queue_state
WHERE until IS NULL OR until > statement_timestamp()
