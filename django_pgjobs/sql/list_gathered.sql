-- list_gathered: the batches whose jobs these jobs wait for, by gather; with unasked, those that were not asked to end.
-- Fence: none (reads).
-- Rows: one per batch.
-- Clock: none.
SELECT w.batch_id
FROM (
    -- A cast in CASE: a malformed value that others wrote spoils no end of a job.
    SELECT CASE WHEN m.result ->> 'batch' ~ '^[0-9]{1,18}$' THEN (m.result ->> 'batch')::bigint END AS batch_id
    FROM pgjobs_memo AS m
    WHERE m.job_id = ANY (%(ids)s::bigint[]) AND m.kind = 'gather' AND m.finished_at IS NULL
) AS w
WHERE w.batch_id IS NOT NULL
  AND (
      NOT %(unasked)s::boolean
      OR (
          SELECT b.cancel_requested_at IS NULL AND b.finished_at IS NULL
          FROM pgjobs_job AS b
          WHERE b.id = ANY (ARRAY[w.batch_id])
      )
  )
