-- list_imported: some jobs of one run of an import, in the order of their ids there.
-- Fence: none (reads).
-- Rows: one per job or schedule: its source, its id there, and the id or the name here.
-- Clock: none.
SELECT i.source, i.source_id, i.job_id, CASE WHEN i.job_id IS NULL THEN i.original ->> 'entry' END
FROM pgjobs_import AS i
WHERE i.run = %(run)s::text AND i.source_id > %(after)s::text
ORDER BY i.source_id
LIMIT %(most)s::integer
