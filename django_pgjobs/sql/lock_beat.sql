-- lock_beat: lock the schedules of django-celery-beat, in the order of their ids.
-- Fence: none (rows of another scheduler).
-- Rows: one per schedule: its id.
-- Clock: none.
SELECT p.id::text
FROM django_celery_beat_periodictask AS p
ORDER BY p.id
FOR UPDATE
