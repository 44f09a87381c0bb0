-- list_gathered: the batches whose jobs these jobs wait for, by gather.
-- Fence: none (reads).
-- Rows: one per batch.
-- Clock: none.
SELECT (m.result ->> 'batch')::bigint
FROM pgjobs_memo AS m
WHERE m.job_id = ANY (%(ids)s::bigint[])
  AND m.kind = 'gather'
  AND m.finished_at IS NULL
  AND m.result ->> 'batch' IS NOT NULL
