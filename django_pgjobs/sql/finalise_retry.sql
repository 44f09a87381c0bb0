-- finalise_retry: end failed attempts whose jobs run again, and keep the failure.
-- Fence: required.
-- Rows: one per job recorded, with its new run_at; a missing one was locked, lost, cancelled in the meantime, or recorded before.
-- Clock: statement_timestamp().
WITH failed AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS f (
        id bigint, claim_id uuid, delay float8, cause text, seconds float8,
        error text, exception text, message text, chain jsonb, traceback text
    )
),
locked AS MATERIALIZED (
    SELECT failed.*, j.claimed_at
    FROM failed
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[failed.id])
    WHERE true
      AND j.claim_id = failed.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND (j.cancel_requested_at IS NULL OR j.ending IS NOT NULL)
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
recorded AS (
    UPDATE pgjobs_job AS j
    SET claim_id = NULL,
        hold = CASE WHEN j.limit_key IS NOT NULL AND j.ending IS NULL THEN 'limited' END,
        overdue_at = NULL,
        run_at = statement_timestamp() + make_interval(secs => locked.delay),
        error = CASE WHEN j.ending IS NULL THEN coalesce(locked.error, j.error) ELSE j.error END,
        duration_seconds = CASE WHEN j.ending IS NULL THEN locked.seconds ELSE j.duration_seconds END,
        worker = %(worker)s::uuid,
        progress = NULL,
        expires_at = NULL, -- it has started
        release_requested_at = NULL
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING
        j.id, j.attempt, j.run_at, j.queue, j.priority,
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
    ON CONFLICT DO NOTHING
)
SELECT id, run_at, queue, priority FROM recorded
