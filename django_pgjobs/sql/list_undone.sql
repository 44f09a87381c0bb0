-- list_undone: which of these jobs something undoes or has undone, them or the batch or flow of which they are members; not those whose undo was cancelled before it began. And compensations whose part another one undoes or has undone.
-- Fence: none (reads).
-- Rows: one per job.
-- Clock: none.
SELECT j.id
FROM pgjobs_job AS j
WHERE j.id = ANY (%(ids)s::bigint[])
  AND (
      j.flow & 64 = 64
      OR (
          -- Not EXISTS, which the planner may answer with a hash of all jobs.
          SELECT true
          FROM pgjobs_job AS p
          WHERE p.id = ANY (ARRAY[j.parent_id]) AND p.flow & 64 = 64
          LIMIT 1
      )
      OR (
          SELECT true
          FROM pgjobs_job AS u
          WHERE u.target_id = ANY (ARRAY[j.id, j.parent_id])
            AND u.target_id IS NOT NULL
            AND u.name = 'pgjobs.undo'
            AND u.outcome IS DISTINCT FROM 'cancelled'
          LIMIT 1
      )
      OR (
          SELECT true
          FROM pgjobs_job AS c
          WHERE c.target_id = ANY (ARRAY[j.target_id])
            AND c.target_id IS NOT NULL
            AND j.name <> 'pgjobs.undo'
            AND c.name <> 'pgjobs.undo'
            AND c.options -> 'target' = j.options -> 'target'
            AND c.id <> j.id
            AND (c.outcome IS NULL OR c.outcome = 'succeeded')
          LIMIT 1
      )
  )
