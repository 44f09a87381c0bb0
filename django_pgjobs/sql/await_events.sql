-- await_events: lock events that jobs begin to wait for, in the order of their names, and make those that do not exist yet: between a waiter and a sender the row decides who comes first.
-- Fence: none (counts waits).
-- Rows: none. An event locked for longer than asked raises.
-- Clock: none.
INSERT INTO pgjobs_event AS e (name, waits)
SELECT n.name, 1
FROM (SELECT DISTINCT w.name FROM unnest(%(names)s::text[]) AS w (name) ORDER BY w.name) AS n
WHERE
    -- Evaluated once, before the first row.
    (SELECT set_config('lock_timeout', coalesce(%(lock_timeout)s::text, current_setting('lock_timeout')), true)) IS NOT NULL
ON CONFLICT (name) DO UPDATE
SET waits = e.waits + 1 -- a write, not a lock alone: a sender at REPEATABLE READ could not see that, and would miss the waiter
