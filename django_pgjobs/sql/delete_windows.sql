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
WHERE w.queue = ANY (ARRAY[over.queue]) AND w.key = ANY (ARRAY[over.key]) AND w.begins_at = ANY (ARRAY[over.begins_at])
RETURNING w.job_id
