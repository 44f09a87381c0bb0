-- write_progress: store the progress that jobs report, and the memory that their attempts took.
-- Fence: required.
-- Rows: one per job written; a missing one was locked or lost, and the next report comes soon.
-- Clock: none.
WITH reported AS MATERIALIZED (
    SELECT id, claim_id, progress, peaks
    FROM json_to_recordset(%(items)s::json) AS p (id bigint, claim_id uuid, progress jsonb, peaks text)
),
locked AS MATERIALIZED (
    SELECT j.id, reported.progress, reported.peaks
    FROM reported
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[reported.id])
    WHERE true
      AND j.claim_id = reported.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET progress = coalesce(locked.progress, j.progress),
    options = CASE WHEN locked.peaks IS NULL THEN j.options ELSE coalesce(j.options, '{}') || jsonb_build_object('peaks', locked.peaks) END
FROM locked
WHERE j.id = ANY (ARRAY[locked.id])
RETURNING j.id
