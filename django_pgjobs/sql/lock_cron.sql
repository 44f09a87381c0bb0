-- lock_cron: wait for whoever runs or fires a cron entry, so that the next statement sees the job that came of it.
-- Fence: none (writes nothing; the row is held until the transaction ends).
-- Rows: 1 = held; 0 = no such entry.
-- Clock: none.
SELECT e.name
FROM pgjobs_cron_entry AS e
WHERE e.name = %(name)s::text
FOR NO KEY UPDATE OF e
