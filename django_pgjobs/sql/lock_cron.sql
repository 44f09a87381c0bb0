-- lock_cron: wait for the transaction that runs or fires a cron entry, so that the next statement sees its job.
-- Fence: none (writes nothing; holds the row until the transaction ends).
-- Rows: 1 = held; 0 = no such entry.
-- Clock: none.
SELECT e.name
FROM pgjobs_cron_entry AS e
WHERE e.name = %(name)s::text
FOR NO KEY UPDATE OF e
