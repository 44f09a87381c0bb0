-- read_ox: tasks of django-ox that wait, only some or all of them, and what a former import has made of each.
-- Fence: none (reads).
-- Rows: one per task, in the order of their ids; the instants as seconds.
-- Clock: none.
SELECT
    t.id::text, i.job_id, t.task_path, t.args::text, t.kwargs::text, t.queue_name, t.priority,
    extract(epoch FROM t.run_after)::float8, t.attempts
FROM django_ox_oxtask AS t
LEFT JOIN pgjobs_import AS i ON i.source = 'django-ox' AND i.source_id = t.id::text
WHERE t.status = 'READY'
  AND t.id > %(after)s::uuid
  AND (%(ids)s::uuid[] IS NULL OR t.id = ANY (%(ids)s::uuid[]))
ORDER BY t.id
LIMIT %(most)s::integer
