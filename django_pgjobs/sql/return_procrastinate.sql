-- return_procrastinate: let jobs wait in procrastinate again, but for those whose queueing lock another job has by now.
-- Fence: none (rows of another queue; only those that are cancelled).
-- Rows: one per job: its id there.
-- Clock: none.
UPDATE procrastinate_jobs AS p
SET status = 'todo'
WHERE p.id = ANY (%(ids)s::bigint[])
  AND p.status = 'cancelled'
  AND (
    SELECT true
    FROM procrastinate_jobs AS o
    WHERE o.queueing_lock = p.queueing_lock AND o.status = 'todo'
    LIMIT 1
  ) IS NULL
RETURNING p.id::text
