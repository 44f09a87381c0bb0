-- finalise_success_keyed: finalise_success that also stores, the first time, the results of jobs with an idempotency key.
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
    RETURNING
        j.id, j.waited, CASE WHEN j.flow & 7 = 1 THEN j.parent_id END AS gate, j.idempotency_key, j.result,
        CASE
            WHEN j.flow = 0 THEN j.name
            ELSE coalesce((SELECT s.name FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.name)
        END AS name,
        CASE
            WHEN j.idempotency_key IS NULL THEN NULL
            ELSE coalesce((SELECT s.payload FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.payload)::text
        END AS arguments
),
stored AS (
    INSERT INTO pgjobs_stored_result (name, key, job_id, result, stored_at, digest)
    SELECT
        r.name, r.idempotency_key, r.id, r.result, statement_timestamp(),
        -- Without the ids of jobs whose results a flow puts in: they differ each time.
        sha256(convert_to(regexp_replace(r.arguments, '\{"\$result": [0-9]+\}', '0', 'g'), 'UTF8'))
    FROM recorded AS r
    WHERE r.idempotency_key IS NOT NULL
      -- This also sees a result whose delete is not committed yet: the insert would wait for that commit.
      AND NOT EXISTS (
          SELECT FROM pgjobs_stored_result AS s WHERE s.name = r.name AND s.key = r.idempotency_key
      )
    ORDER BY r.name, r.idempotency_key, r.id
    ON CONFLICT DO NOTHING
)
SELECT id, CASE WHEN waited THEN pg_notify('pgjobs_ended', id::text) END, gate FROM recorded
