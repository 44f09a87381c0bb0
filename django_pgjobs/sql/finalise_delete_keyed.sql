-- finalise_delete_keyed: finalise_delete that also stores, the first time, the results of jobs with an idempotency key.
-- Fence: required.
-- Rows: one per job deleted; a missing one was locked, lost, deleted before, or has a waiter or steps.
-- Clock: statement_timestamp().
WITH ended AS MATERIALIZED (
    SELECT id, claim_id, result, succeeded
    FROM json_to_recordset(%(items)s::json) AS e (id bigint, claim_id uuid, result jsonb, succeeded boolean)
),
locked AS MATERIALIZED (
    SELECT j.id, ended.result, ended.succeeded
    FROM ended
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[ended.id])
    WHERE NOT j.waited
      AND j.flow = 0
      AND j.claim_id = ended.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR UPDATE OF j SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_job AS j
    USING locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING
        j.id, j.name, j.idempotency_key, locked.result, locked.succeeded,
        CASE WHEN j.idempotency_key IS NOT NULL THEN j.payload::text END AS arguments
),
stored AS (
    INSERT INTO pgjobs_stored_result (name, key, job_id, result, stored_at, digest)
    SELECT
        r.name, r.idempotency_key, r.id, r.result, statement_timestamp(),
        -- Without the ids of jobs whose results a flow puts in: they differ each time.
        sha256(convert_to(regexp_replace(r.arguments, '\{"\$result": [0-9]+\}', '0', 'g'), 'UTF8'))
    FROM gone AS r
    WHERE r.succeeded AND r.idempotency_key IS NOT NULL
      -- This also sees a result whose delete is not committed yet: the insert would wait for that commit.
      AND NOT EXISTS (
          SELECT FROM pgjobs_stored_result AS s WHERE s.name = r.name AND s.key = r.idempotency_key
      )
    ORDER BY r.name, r.idempotency_key, r.id
    ON CONFLICT DO NOTHING
),
history AS (
    DELETE FROM pgjobs_attempt AS a
    USING gone
    WHERE a.job_id = ANY (ARRAY[gone.id])
)
SELECT id FROM gone
