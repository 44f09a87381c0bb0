-- read_cron: read a cron entry to change it, and hold its row until the transaction ends.
-- Fence: none (writes nothing).
-- Rows: 1 = whether it was made at run time, and its values; 0 = no such entry.
-- Clock: none.
SELECT
    e.origin = 'row', e.job_name, e.declared_expression, e.declared_zone, e.misfire, e.overlap, e.enabled, e.starts_at, e.ends_at,
    e.max_fires, e.declared_payload::text, e.declared_options::text, e.broken
FROM pgjobs_cron_entry AS e
WHERE e.name = %(name)s::text
FOR NO KEY UPDATE OF e
