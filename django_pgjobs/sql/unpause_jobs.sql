-- unpause_jobs: resume held jobs whose name is no longer paused; a limited one waits for admission again.
-- Fence: none (held rows are not claimed; the hold is checked under the row lock).
-- Rows: one per job, with its queue and priority.
-- Clock: statement_timestamp().
WITH RECURSIVE names AS (
    (
        SELECT name FROM pgjobs_job WHERE hold = 'paused' ORDER BY name LIMIT 1
    )
    UNION ALL
    SELECT following.name
    FROM names,
    LATERAL (
        SELECT j.name FROM pgjobs_job AS j WHERE j.hold = 'paused' AND j.name > names.name ORDER BY j.name LIMIT 1
    ) AS following
),
resumed AS MATERIALIZED (
    SELECT names.name
    FROM names
    WHERE NOT EXISTS (
        SELECT
        FROM pgjobs_queue_state AS s
        WHERE s.kind = 'job'
          AND s.name = names.name
          AND (s.until IS NULL OR s.until > statement_timestamp())
    )
),
locked AS MATERIALIZED (
    SELECT going.id
    FROM resumed,
    LATERAL (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.hold = 'paused'
          AND j.name = resumed.name
          AND j.finished_at IS NULL
        LIMIT %(limit)s::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS going
    LIMIT %(limit)s::integer
)
UPDATE pgjobs_job AS j
SET hold = CASE WHEN j.limit_key IS NOT NULL AND j.ending IS NULL THEN 'limited' END,
    hold_reason = '',
    ready_at = statement_timestamp()
FROM locked
WHERE j.id = ANY (ARRAY[locked.id])
RETURNING j.id, j.queue, j.priority
