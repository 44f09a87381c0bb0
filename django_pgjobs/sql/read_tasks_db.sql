-- read_tasks_db: tasks of django-tasks-db that wait, only some or all of them, and what a former import has made of each.
-- Fence: none (reads).
-- Rows: one per task, in the order of their ids; the instants as seconds, none for the year 9999, which means at once.
-- Clock: none.
SELECT
    t.id::text, i.job_id, t.task_path, t.args_kwargs::text, t.queue_name, t.priority,
    CASE WHEN t.run_after < '9000-01-01' THEN extract(epoch FROM t.run_after)::float8 END
FROM django_tasks_database_dbtaskresult AS t
LEFT JOIN pgjobs_import AS i ON i.source = 'django-tasks-db' AND i.source_id = t.id::text
WHERE t.status = 'READY'
  AND t.id > %(after)s::uuid
  AND (%(ids)s::uuid[] IS NULL OR t.id = ANY (%(ids)s::uuid[]))
ORDER BY t.id
LIMIT %(most)s::integer
