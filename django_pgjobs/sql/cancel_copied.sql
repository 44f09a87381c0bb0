-- cancel_copied: end all that waits or runs in the copy of a database, with no callback, no undo, and no worker to ask.
-- Fence: none (under the lock of the table, in a database that no worker serves).
-- Rows: 1 = how many jobs were ended.
-- Clock: statement_timestamp().
WITH ended AS (
    UPDATE pgjobs_job
    SET outcome = CASE WHEN ending IN ('succeeded', 'abandoned') THEN ending ELSE 'cancelled' END,
        finished_at = statement_timestamp(),
        cancel_requested_at = coalesce(cancel_requested_at, statement_timestamp()),
        cancel_by = %(by)s::text,
        cancel_reason = %(reason)s::text,
        hold = NULL,
        flow = flow & ~256 -- or it would be undone
    WHERE finished_at IS NULL
    RETURNING id
),
settled AS (
    UPDATE pgjobs_job SET flow = flow & ~256 WHERE flow >= 256 AND finished_at IS NOT NULL
),
unclaimed AS (DELETE FROM pgjobs_claim),
left_behind AS (DELETE FROM pgjobs_heartbeat)
SELECT count(*) FROM ended
