-- release_jobs: make claimed jobs ready again that never started, or stopped through no fault of their own; the attempt does not count.
-- Fence: required.
-- Rows: one per job released, with its queue, its priority and how often it was released while it ran; a missing one was locked, lost, cancelled in the meantime, or released before.
-- Clock: statement_timestamp().
WITH released AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS r (
        id bigint, claim_id uuid, cause text, seconds float8, suspect boolean, exception text, message text
    )
),
locked AS MATERIALIZED (
    SELECT released.*
    FROM released
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[released.id])
    WHERE true
      AND j.claim_id = released.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND (j.cancel_requested_at IS NULL OR j.ending IS NOT NULL)
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
recorded AS (
    UPDATE pgjobs_job AS j
    SET claim_id = NULL,
        hold = CASE WHEN j.limit_key IS NOT NULL AND j.ending IS NULL THEN 'limited' END,
        overdue_at = NULL,
        suspect_attempt = CASE WHEN locked.suspect THEN j.attempt ELSE j.suspect_attempt END,
        attempt = j.attempt - (j.ending IS NULL AND j.attempt > 0)::integer,
        ending_attempt = j.ending_attempt - (j.ending IS NOT NULL AND j.ending_attempt > 0)::integer,
        progress = NULL,
        expires_at = CASE WHEN locked.cause IS NULL AND locked.suspect IS NOT TRUE THEN j.expires_at END, -- null once it has started
        ready_at = statement_timestamp(),
        release_requested_at = NULL
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING
        j.id, j.queue, j.priority, j.attempt + (j.ending IS NULL)::integer AS number,
        locked.claim_id, locked.cause, locked.seconds, locked.exception, locked.message
),
history AS (
    INSERT INTO pgjobs_attempt (
        job_id, claim_id, number, cause, worker, worker_name, release, started_at, ended_at, duration_seconds,
        exception, message
    )
    SELECT
        id, claim_id, number, cause, %(worker)s::uuid, %(worker_name)s, %(release)s,
        statement_timestamp() - make_interval(secs => seconds), statement_timestamp(), seconds,
        coalesce(exception, ''), coalesce(message, '')
    FROM recorded
    WHERE cause IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT
    id, queue, priority,
    CASE
        WHEN cause IS NULL THEN 0
        ELSE 1 + (
            SELECT count(*)::integer
            FROM pgjobs_attempt AS a
            WHERE a.job_id = recorded.id AND a.cause = 'released' AND a.claim_id <> recorded.claim_id
        )
    END AS times
FROM recorded
