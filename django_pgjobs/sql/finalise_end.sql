-- finalise_end: end jobs as abandoned or cancelled, with the failed attempt in the history if there was one.
-- Fence: required.
-- Rows: one per job recorded; a missing one was locked, lost, or recorded before.
-- Clock: statement_timestamp().
WITH ended AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS e (
        id bigint, claim_id uuid, outcome text, cause text, seconds float8,
        error text, reason text, exception text, message text, chain jsonb, traceback text
    )
),
locked AS MATERIALIZED (
    SELECT ended.*
    FROM ended
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[ended.id])
    WHERE true
      AND (j.flow & 7 = 0 OR %(settled)s::boolean) -- its end counts in a gate, which the caller has to settle
      AND j.claim_id = ended.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
recorded AS (
    UPDATE pgjobs_job AS j
    SET outcome = locked.outcome,
        finished_at = statement_timestamp(),
        error = coalesce(locked.error, j.error),
        error_class = CASE
            WHEN locked.outcome = 'abandoned' THEN coalesce(left(nullif(locked.exception, ''), 200), locked.cause, j.error_class)
        END,
        cancel_reason = CASE WHEN j.cancel_reason = '' THEN coalesce(locked.reason, '') ELSE j.cancel_reason END,
        duration_seconds = coalesce(locked.seconds, j.duration_seconds),
        worker = %(worker)s::uuid
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING
        j.id, j.attempt, j.waited,
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
    FROM recorded
    WHERE cause IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id, CASE WHEN waited THEN pg_notify('pgjobs_ended', id::text) END FROM recorded
