-- lock_q2_jobs: lock tasks of django-q2 that wait, in the order of their ids; those that its worker has or has locked are left out.
-- Fence: none (rows of another queue, whose workers change the lock of what they take).
-- Rows: one per task: its id.
-- Clock: statement_timestamp().
SELECT t.id::text
FROM django_q_ormq AS t
WHERE t.lock <= statement_timestamp() AND t.id > %(after)s::integer
ORDER BY t.id
LIMIT %(most)s::integer
FOR UPDATE SKIP LOCKED
