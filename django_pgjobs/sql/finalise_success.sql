-- finalise_success: end attempts whose body returned.
-- Fence: required.
-- Rows: one per job recorded, and the batch whose gate alone it feeds; a missing one was locked, lost, or recorded before.
-- Clock: statement_timestamp().
WITH done AS MATERIALIZED (
    SELECT id, claim_id, result, seconds
    FROM json_to_recordset(%(items)s::json) AS d (id bigint, claim_id uuid, result jsonb, seconds float8)
),
locked AS MATERIALIZED (
    SELECT j.id, done.result, done.seconds
    FROM done
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[done.id])
    WHERE true
      AND (j.flow & 7 = 0 OR %(settled)s::boolean) -- its end counts in a gate, which the caller has to settle
      AND j.claim_id = done.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
recorded AS (
    UPDATE pgjobs_job AS j
    SET outcome = 'succeeded',
        finished_at = statement_timestamp(),
        result = locked.result,
        duration_seconds = locked.seconds,
        worker = %(worker)s::uuid
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING j.id, j.waited, CASE WHEN j.flow & 7 = 1 THEN j.parent_id END AS gate
)
SELECT id, CASE WHEN waited THEN pg_notify('pgjobs_ended', id::text) END, gate FROM recorded
