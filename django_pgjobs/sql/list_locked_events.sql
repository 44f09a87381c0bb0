-- list_locked_events: which of these events another transaction has locked; waits for none.
-- Fence: none (reads; roll back the locks that it takes).
-- Rows: one per locked event.
-- Clock: none.
WITH free AS MATERIALIZED (
    SELECT e.name FROM pgjobs_event AS e WHERE e.name = ANY (%(names)s::text[]) FOR SHARE SKIP LOCKED
)
SELECT e.name
FROM pgjobs_event AS e
WHERE e.name = ANY (%(names)s::text[]) AND e.name NOT IN (SELECT name FROM free)
