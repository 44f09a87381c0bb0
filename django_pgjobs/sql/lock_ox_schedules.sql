-- lock_ox_schedules: lock the schedules of django-ox, in the order of their ids, as its workers do to fire one.
-- Fence: none (rows of another scheduler).
-- Rows: one per schedule: its id.
-- Clock: none.
SELECT p.id::text
FROM django_ox_oxschedule AS p
ORDER BY p.id
FOR UPDATE
