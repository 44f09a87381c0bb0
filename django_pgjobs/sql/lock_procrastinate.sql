-- lock_procrastinate: lock jobs of procrastinate that wait, in the order of their ids; those that its worker has locked are left out.
-- Fence: none (rows of another queue, whose workers lock what they take).
-- Rows: one per job: its id.
-- Clock: none.
SELECT p.id::text
FROM procrastinate_jobs AS p
WHERE p.status = 'todo' AND p.id > %(after)s::bigint
ORDER BY p.id
LIMIT %(most)s::integer
FOR UPDATE SKIP LOCKED
