-- return_q2_jobs: insert deleted tasks of django-q2 again, as they were.
-- Fence: none (a task that is there stays as it is).
-- Rows: one per task: its id there.
-- Clock: none.
INSERT INTO django_q_ormq
SELECT (jsonb_populate_record(NULL::django_q_ormq, i.original)).*
FROM pgjobs_import AS i
WHERE i.source = 'django-q2' AND i.source_id = ANY (%(ids)s::text[])
ON CONFLICT DO NOTHING
RETURNING id::text
