-- mark_ending: mark jobs whose callback alone is left, and store the results of successes; same claim, first start of the callback.
-- Fence: required.
-- Rows: one per job marked; a missing one was locked, lost, or has ended. A repetition marks the same jobs again.
-- Clock: statement_timestamp().
WITH ending AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS e (
        id bigint, claim_id uuid, outcome text, cause text, seconds float8, result text,
        error text, reason text, exception text, message text, chain jsonb, traceback text
    )
),
locked AS MATERIALIZED (
    SELECT ending.*
    FROM ending
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[ending.id])
    WHERE true
      AND j.claim_id = ending.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
marked AS (
    UPDATE pgjobs_job AS j
    SET ending = locked.outcome,
        ending_attempt = 1,
        result = CASE WHEN locked.outcome = 'succeeded' THEN locked.result::jsonb ELSE j.result END,
        overdue_at = statement_timestamp() + make_interval(secs => %(allowance)s::float8),
        error = coalesce(locked.error, j.error),
        error_class = CASE WHEN locked.outcome = 'abandoned' THEN coalesce(left(nullif(locked.exception, ''), 200), locked.cause) END,
        cancel_reason = CASE WHEN j.cancel_reason = '' THEN coalesce(locked.reason, '') ELSE j.cancel_reason END,
        duration_seconds = coalesce(locked.seconds, j.duration_seconds)
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING
        j.id, j.attempt, j.ending, j.idempotency_key, j.result,
        CASE
            WHEN j.flow = 0 THEN j.name
            ELSE coalesce((SELECT s.name FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.name)
        END AS name,
        CASE
            WHEN j.idempotency_key IS NULL THEN NULL
            ELSE coalesce((SELECT s.payload FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.payload)::text
        END AS arguments,
        locked.claim_id, locked.cause, locked.seconds, locked.exception, locked.message, locked.chain, locked.traceback
),
stored AS (
    INSERT INTO pgjobs_stored_result (name, key, job_id, result, stored_at, digest)
    SELECT
        r.name, r.idempotency_key, r.id, r.result, statement_timestamp(),
        -- Without the ids of jobs whose results a flow puts in: they differ each time.
        sha256(convert_to(regexp_replace(r.arguments, '\{"\$result": [0-9]+\}', '0', 'g'), 'UTF8'))
    FROM marked AS r
    WHERE r.ending = 'succeeded' AND r.idempotency_key IS NOT NULL
      -- This also sees a result whose delete is not committed yet: the insert would wait for that commit.
      AND NOT EXISTS (
          SELECT FROM pgjobs_stored_result AS s WHERE s.name = r.name AND s.key = r.idempotency_key
      )
    ORDER BY r.name, r.idempotency_key, r.id
    ON CONFLICT DO NOTHING
),
history AS (
    INSERT INTO pgjobs_attempt (
        job_id, claim_id, number, cause, worker, worker_name, release, started_at, ended_at, duration_seconds,
        exception, message, chain, traceback
    )
    SELECT
        id, claim_id, attempt, cause, %(worker)s::uuid, %(worker_name)s, %(release)s,
        statement_timestamp() - make_interval(secs => seconds), statement_timestamp(), seconds,
        coalesce(exception, ''), coalesce(message, ''), coalesce(chain, '[]'), coalesce(traceback, '')
    FROM marked
    WHERE cause IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id FROM marked
