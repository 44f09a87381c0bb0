-- delete_windows: delete key windows that are over, from the walk's position on.
-- Fence: none (a window that is over is not read).
-- Rows: 1 = how many were deleted, and the last end among them; locked rows wait for the next walk.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT queue, key, begins_at
    FROM pgjobs_key_window
    WHERE ends_at <= statement_timestamp() AND ends_at >= %(after)s::timestamptz
    ORDER BY ends_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_key_window AS w
    USING over
    WHERE w.queue = ANY (ARRAY[over.queue]) AND w.key = ANY (ARRAY[over.key]) AND w.begins_at = ANY (ARRAY[over.begins_at])
    RETURNING w.ends_at
)
SELECT count(*)::integer, max(ends_at)::text FROM gone
