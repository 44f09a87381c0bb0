-- read_beat: schedules of django-celery-beat, only some or all of them, and which ones an import has taken before.
-- Fence: none (reads).
-- Rows: one per schedule: its id, whether it was taken, its row, and those of its crontab, its interval and its instant.
-- Clock: none.
SELECT p.id::text, i.source_id IS NOT NULL AS noted, to_jsonb(p)::text, to_jsonb(c)::text, to_jsonb(v)::text, to_jsonb(o)::text
FROM django_celery_beat_periodictask AS p
LEFT JOIN django_celery_beat_crontabschedule AS c ON c.id = p.crontab_id
LEFT JOIN django_celery_beat_intervalschedule AS v ON v.id = p.interval_id
LEFT JOIN django_celery_beat_clockedschedule AS o ON o.id = p.clocked_id
LEFT JOIN pgjobs_import AS i ON i.source = 'django-celery-beat' AND i.source_id = p.id::text
WHERE %(ids)s::integer[] IS NULL OR p.id = ANY (%(ids)s::integer[])
ORDER BY p.id
