-- return_ox_schedules: let schedules fire in django-ox as before an import, but not what has fired here, and tell its workers.
-- Fence: none (rows of another scheduler; only those that an import has noted).
-- Rows: one per schedule: its id there.
-- Clock: statement_timestamp().
WITH notified AS (
    INSERT INTO django_ox_oxschedulechange AS c (id, changed_at)
    VALUES (1, statement_timestamp())
    ON CONFLICT (id) DO UPDATE SET changed_at = greatest(excluded.changed_at, c.changed_at + interval '1 microsecond')
)
UPDATE django_ox_oxschedule AS p
SET enabled = (i.original ->> 'enabled')::boolean,
    start_time = greatest(p.start_time, e.last_fire_at + interval '1 microsecond')
FROM pgjobs_import AS i
LEFT JOIN pgjobs_cron_entry AS e ON e.name = i.original ->> 'entry'
WHERE i.source = 'django-ox-schedules' AND i.source_id = p.id::text AND p.id = ANY (%(ids)s::bigint[])
RETURNING p.id::text
