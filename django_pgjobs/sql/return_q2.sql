-- return_q2: insert deleted schedules of django-q2 again, as they were, but for what has fired here.
-- Fence: none (a schedule that is there stays as it is).
-- Rows: one per schedule: its id there.
-- Clock: none.
INSERT INTO django_q_schedule
SELECT (
    jsonb_populate_record(
        NULL::django_q_schedule,
        i.original || CASE WHEN e.last_fire_at IS NULL THEN '{}' ELSE jsonb_build_object('next_run', e.next_fire_at) END
    )
).*
FROM pgjobs_import AS i
LEFT JOIN pgjobs_cron_entry AS e ON e.name = i.original ->> 'entry'
WHERE i.source = 'django-q2-schedules' AND i.source_id = ANY (%(ids)s::text[])
ON CONFLICT DO NOTHING
RETURNING id::text
