-- return_beat: let schedules fire in django-celery-beat as before an import, but not what has fired here, and tell its process.
-- Fence: none (rows of another scheduler; only those that an import has noted).
-- Rows: one per schedule: its id there.
-- Clock: statement_timestamp().
WITH notified AS (
    INSERT INTO django_celery_beat_periodictasks AS p (ident, last_update)
    VALUES (1, statement_timestamp())
    ON CONFLICT (ident) DO UPDATE
    SET last_update = greatest(excluded.last_update, p.last_update + interval '1 microsecond')
)
UPDATE django_celery_beat_periodictask AS p
SET enabled = (i.original ->> 'enabled')::boolean, last_run_at = greatest(p.last_run_at, e.last_fire_at)
FROM pgjobs_import AS i
LEFT JOIN pgjobs_cron_entry AS e ON e.name = i.original ->> 'entry'
WHERE i.source = 'django-celery-beat' AND i.source_id = p.id::text AND p.id = ANY (%(ids)s::integer[])
RETURNING p.id::text
