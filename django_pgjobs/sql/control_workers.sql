-- control_workers: ask workers to be quiet, to claim again, to drain or to recycle their executors; of two requests the last one wins.
-- Fence: none (a worker's row grants no right).
-- Rows: one per worker that has a row = its id, its name, its status before the lock, whether it was asked, and for how many seconds it has not been heard from.
-- Clock: statement_timestamp().
WITH controlled AS (
    UPDATE pgjobs_heartbeat AS h
    SET control = %(control)s::text,
        control_number = h.control_number + 1,
        control_by = %(by)s::text,
        control_reason = %(reason)s::text,
        controlled_at = statement_timestamp()
    WHERE h.id = ANY (%(ids)s::uuid[])
      AND h.state IN ('running', 'quiet') -- a drain is final, and what has left or lost its jobs obeys no more
      AND h.last_beat_at > statement_timestamp() - make_interval(secs => %(silent)s::float8)
    RETURNING h.id
)
SELECT
    h.id, left(h.name, 1000),
    CASE
        WHEN h.state IN ('stopped', 'lost') THEN h.state
        WHEN h.last_beat_at <= statement_timestamp() - make_interval(secs => %(stale)s::float8) THEN 'lost'
        WHEN h.last_beat_at <= statement_timestamp() - make_interval(secs => %(silent)s::float8) THEN 'silent'
        ELSE h.state
    END,
    controlled.id IS NOT NULL,
    extract(epoch FROM statement_timestamp() - h.last_beat_at)::float8
FROM pgjobs_heartbeat AS h
LEFT JOIN controlled ON controlled.id = h.id
WHERE h.id = ANY (%(ids)s::uuid[])
ORDER BY h.name, h.id
