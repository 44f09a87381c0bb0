-- delete_windows: delete windows of keys that are over.
-- Fence: none (a window that is over is read by nobody).
-- Rows: one per window deleted; one that somebody holds is left for the next time.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT queue, key, begins_at
    FROM pgjobs_key_window
    WHERE ends_at <= statement_timestamp()
    ORDER BY ends_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgjobs_key_window AS w
USING over
WHERE w.queue = over.queue AND w.key = over.key AND w.begins_at = over.begins_at
RETURNING w.job_id
