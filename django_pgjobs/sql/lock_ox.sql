-- lock_ox: lock tasks of django-ox that wait, in the order of their ids; those that its worker has locked are left out.
-- Fence: none (rows of another queue, whose workers lock what they take).
-- Rows: one per task: its id.
-- Clock: none.
SELECT t.id::text
FROM django_ox_oxtask AS t
WHERE t.status = 'READY' AND t.id > %(after)s::uuid
ORDER BY t.id
LIMIT %(most)s::integer
FOR UPDATE SKIP LOCKED
