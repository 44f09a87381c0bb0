-- is_waited_for: whether another session waits for a lock on a table that this server process holds.
-- Fence: none (reads).
-- Rows: 1 = whether.
-- Clock: none.
SELECT EXISTS (
    SELECT FROM pg_locks AS l
    WHERE NOT l.granted AND l.locktype = 'relation' AND %(pid)s::integer = ANY (pg_blocking_pids(l.pid))
)
