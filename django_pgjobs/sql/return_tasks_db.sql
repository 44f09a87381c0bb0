-- return_tasks_db: insert deleted tasks of django-tasks-db again, as they were.
-- Fence: none (a task that is there stays as it is).
-- Rows: one per task: its id there.
-- Clock: none.
INSERT INTO django_tasks_database_dbtaskresult
SELECT (jsonb_populate_record(NULL::django_tasks_database_dbtaskresult, i.original)).*
FROM pgjobs_import AS i
WHERE i.source = 'django-tasks-db' AND i.source_id = ANY (%(ids)s::text[])
ON CONFLICT DO NOTHING
RETURNING id::text
