-- finish_wait: remember that a job has slept long enough, that the event it waits for was sent, or that it waited too long.
-- Fence: required.
-- Rows: 1 = what it came to (sent, timed_out, slept; waiting: nothing was written), the event's payload, and for how long it still waits, null if it has not begun to; 0 = lost.
-- Clock: statement_timestamp().
WITH event AS MATERIALIZED (
    SELECT e.name, e.payload
    FROM pgjobs_event AS e
    WHERE e.name = ANY (ARRAY[%(event)s::text]) AND e.sent_at IS NOT NULL
    FOR NO KEY UPDATE OF e -- no withdrawal of the event that this job reads
),
held AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.id = ANY (ARRAY[%(id)s::bigint])
      AND (SELECT count(*) FROM event) >= 0 -- evaluated once, before the first row: events are locked before jobs
      AND j.claim_id = %(claim_id)s::uuid -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE
),
found AS MATERIALIZED (
    SELECT
        held.id, m.wake_at, m.created_at, event.payload,
        CASE
            WHEN m.finished_at IS NOT NULL THEN 'waiting' -- by another run of this job: it is read again
            WHEN event.name IS NOT NULL THEN 'sent'
            WHEN m.wake_at > statement_timestamp() OR m.id IS NULL THEN 'waiting'
            WHEN m.event IS NOT NULL THEN 'timed_out'
            ELSE 'slept'
        END AS status
    FROM held
    LEFT JOIN pgjobs_memo AS m ON m.job_id = %(id)s::bigint AND m.name = %(name)s::text
    LEFT JOIN event ON true
),
first_read AS (
    UPDATE pgjobs_event AS e
    SET read_at = statement_timestamp()
    FROM found
    WHERE e.name = ANY (ARRAY[%(event)s::text]) AND e.read_at IS NULL AND found.status = 'sent'
),
marked AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow | 32
    FROM found
    WHERE j.id = ANY (ARRAY[found.id]) AND found.status <> 'waiting'
      AND (SELECT true FROM pgjobs_memo AS k WHERE k.job_id = ANY (ARRAY[found.id]) LIMIT 1) IS NULL -- its first memo
),
kept AS (
    INSERT INTO pgjobs_memo AS m (
        job_id, name, kind, event, result, error, wake_at, claim_id, created_at, finished_at, duration_seconds
    )
    SELECT
        found.id, %(name)s::text, %(kind)s::text, %(event)s::text, found.payload,
        CASE WHEN found.status = 'timed_out' THEN %(error)s::text ELSE '' END, found.wake_at, %(claim_id)s::uuid,
        statement_timestamp(), statement_timestamp(), 0
    FROM found
    WHERE found.status <> 'waiting'
    ON CONFLICT (job_id, name) DO UPDATE
    SET result = excluded.result,
        error = excluded.error,
        claim_id = excluded.claim_id,
        finished_at = excluded.finished_at,
        duration_seconds = extract(epoch FROM excluded.finished_at - m.created_at)
    WHERE m.finished_at IS NULL
)
SELECT
    found.status, found.payload::text,
    extract(epoch FROM found.wake_at - statement_timestamp())::float8 AS left_seconds
FROM found
