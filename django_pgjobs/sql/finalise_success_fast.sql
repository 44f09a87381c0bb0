-- finalise_success_fast: finalise_success without the step that locks: it waits 50 ms for a locked row, then gives all up.
-- Fence: required.
-- Rows: one per job recorded, and the batch whose gate alone it feeds; a missing one was lost or recorded before. A lock timeout or a deadlock records none.
-- Clock: statement_timestamp().
UPDATE pgjobs_job AS j
SET outcome = 'succeeded',
    finished_at = statement_timestamp(),
    result = nullif(done.result::text, 'null')::jsonb,
    duration_seconds = done.micros::float8 / 1e6::float8,
    worker = %(worker)s::uuid
FROM ROWS FROM (
    unnest(%(ids)s::bigint[]),
    unnest(%(claims)s::smallint[]),
    unnest(%(micros)s::bigint[]),
    json_array_elements(%(results)s::json)
) AS done (id, claim, micros, result)
WHERE (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL -- evaluated once, before the first row
  -- A text of two values in the place of one result would move the results behind it to other jobs.
  AND json_array_length(%(results)s::json) IN (0, cardinality(%(ids)s::bigint[]))
  AND (j.flow & 7 = 0 OR %(settled)s::boolean) -- its end counts in a gate, which the caller has to settle
  AND j.id = ANY (ARRAY[done.id])
  AND j.claim_id = (%(claim_ids)s::uuid[])[done.claim] -- fence
  AND j.outcome IS NULL -- fence
RETURNING j.id, CASE WHEN j.waited THEN pg_notify('pgjobs_ended', j.id::text) END, CASE WHEN j.flow & 7 = 1 THEN j.parent_id END
