-- mark_ending: mark jobs whose callback alone is left; same claim, first start of the callback.
-- Fence: required.
-- Rows: one per job marked; a missing one was locked, lost, or has ended. A repetition marks the same jobs again.
-- Clock: statement_timestamp().
WITH ending AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS e (
        id bigint, claim_id uuid, outcome text, cause text, seconds float8,
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
        deadline_at = statement_timestamp() + make_interval(secs => %(allowance)s::float8),
        error = coalesce(locked.error, j.error),
        cancel_reason = CASE WHEN j.cancel_reason = '' THEN coalesce(locked.reason, '') ELSE j.cancel_reason END,
        duration_seconds = coalesce(locked.seconds, j.duration_seconds)
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING
        j.id, j.attempt,
        locked.claim_id, locked.cause, locked.seconds, locked.exception, locked.message, locked.chain, locked.traceback
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
