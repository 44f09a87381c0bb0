-- write_lines: store what jobs have logged, while they have their claim; an atomic job may have ended itself, or entered its next step, a moment ago. The first lines of a run replace the oldest ones of earlier runs, beyond 10,000.
-- Fence: required.
-- Rows: one per job and piece written; a missing one was locked or lost.
-- Clock: statement_timestamp().
WITH logged AS MATERIALIZED (
    SELECT id, claim_id, first, lines
    FROM json_to_recordset(%(items)s::json) AS l (id bigint, claim_id uuid, first boolean, lines json)
),
locked AS MATERIALIZED (
    SELECT j.id, j.claim_id, j.claimed_at, j.attempt, logged.first, logged.lines
    FROM logged
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[logged.id])
    WHERE true
      AND j.claim_id = logged.claim_id -- fence
      -- A prune that does not see these lines must not delete the job.
      AND coalesce(j.finished_at > statement_timestamp() - interval '30 seconds', true)
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
stepped AS MATERIALIZED (
    SELECT
        j.id, s.claim_id, s.attempt, logged.first, logged.lines,
        coalesce(
            (
                SELECT e.claimed_at
                FROM pgjobs_log_line AS e
                WHERE e.job_id = ANY (ARRAY[j.id]) AND e.claim_id = logged.claim_id
                ORDER BY e.job_id DESC, e.claimed_at DESC, e.number DESC
                LIMIT 1
            ),
            s.finished_at - make_interval(secs => coalesce(s.duration_seconds, 0))
        ) AS claimed_at
    FROM logged
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[logged.id])
    JOIN pgjobs_step AS s ON s.job_id = ANY (ARRAY[j.id])
    WHERE j.flow <> 0
      AND j.claim_id IS DISTINCT FROM logged.claim_id
      AND s.claim_id = logged.claim_id
      AND s.finished_at > statement_timestamp() - interval '30 seconds'
    FOR KEY SHARE OF j SKIP LOCKED -- who claims the next step neither waits nor holds this up
),
owned AS MATERIALIZED (
    SELECT id, claim_id, claimed_at, attempt, first, lines FROM locked
    UNION ALL
    SELECT id, claim_id, claimed_at, attempt, first, lines FROM stepped
),
written AS (
    INSERT INTO pgjobs_log_line (
        job_id, claimed_at, number, claim_id, attempt, level, logger, message, logged_at, written_at
    )
    SELECT
        owned.id, owned.claimed_at, l.number, owned.claim_id, owned.attempt, l.level, l.logger, l.message,
        to_timestamp(l.at), statement_timestamp()
    FROM owned
    CROSS JOIN LATERAL json_to_recordset(owned.lines) AS l (
        number bigint, level smallint, logger text, message text, at float8
    )
    ON CONFLICT DO NOTHING -- its first try was committed, and the answer lost
),
trimmed AS (
    -- A job that snoozes has any number of runs.
    DELETE FROM pgjobs_log_line AS l
    USING owned
    WHERE owned.first
      AND l.job_id = ANY (ARRAY[owned.id])
      AND (l.claimed_at, l.number) < (
        SELECT e.claimed_at, e.number
        FROM pgjobs_log_line AS e
        WHERE e.job_id = ANY (ARRAY[owned.id])
        ORDER BY e.job_id DESC, e.claimed_at DESC, e.number DESC
        OFFSET 9999
        LIMIT 1
      )
)
SELECT id FROM owned
