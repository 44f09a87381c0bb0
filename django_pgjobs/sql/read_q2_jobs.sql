-- read_q2_jobs: tasks of django-q2, only some or all of them, and what a former import has made of each.
-- Fence: none (reads).
-- Rows: one per task, in the order of their ids: its cluster, its signed package, and whether a worker has it.
-- Clock: statement_timestamp().
SELECT t.id::text, i.job_id, t.key, t.payload, (t.lock <= statement_timestamp()) IS NOT true AS held
FROM django_q_ormq AS t
LEFT JOIN pgjobs_import AS i ON i.source = 'django-q2' AND i.source_id = t.id::text
WHERE t.id > %(after)s::integer
  AND (%(ids)s::integer[] IS NULL OR t.id = ANY (%(ids)s::integer[]))
ORDER BY t.id
LIMIT %(most)s::integer
