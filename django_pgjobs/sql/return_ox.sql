-- return_ox: let discarded tasks of django-ox wait again.
-- Fence: none (rows of another queue; only those that are discarded).
-- Rows: one per task: its id there.
-- Clock: none.
UPDATE django_ox_oxtask AS t
SET status = 'READY', finished_at = NULL
WHERE t.id = ANY (%(ids)s::uuid[]) AND t.status = 'DISCARDED'
RETURNING t.id::text
