-- lock_q2: lock the schedules of django-q2, in the order of their ids.
-- Fence: none (rows of another scheduler).
-- Rows: one per schedule: its id.
-- Clock: none.
SELECT p.id::text
FROM django_q_schedule AS p
ORDER BY p.id
FOR UPDATE
