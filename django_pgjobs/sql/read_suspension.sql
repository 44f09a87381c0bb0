-- read_suspension: what a durable function waits for; the latest, if it has stopped in several places.
-- Fence: none (reads).
-- Rows: 1 = its memo, and for a gather how many of its jobs have not ended; 0 = it waits for nothing.
-- Clock: none.
SELECT
    m.kind, left(m.name, 200), left(m.event, 200),
    -- Moving the job to a later instant has put its waking off.
    greatest(m.wake_at, (SELECT j.run_at FROM pgjobs_job AS j WHERE j.id = %(id)s::bigint)) AS wake_at,
    m.failures, left(m.error, 500),
    b.id AS batch_id, g.pending, g.total
FROM (
    -- OFFSET keeps the index of all open memos out of it.
    SELECT o.id, o.kind, o.name, o.event, o.wake_at, o.failures, o.error, o.result, o.finished_at
    FROM pgjobs_memo AS o
    WHERE o.job_id = %(id)s::bigint
    OFFSET 0
) AS m
CROSS JOIN LATERAL (
    -- A cast in CASE: a malformed value that others wrote spoils no page.
    SELECT CASE WHEN m.kind = 'gather' AND m.result ->> 'batch' ~ '^[0-9]{1,18}$' THEN (m.result ->> 'batch')::bigint END AS id
) AS b
LEFT JOIN pgjobs_gate AS g ON g.job_id = b.id
WHERE m.finished_at IS NULL AND m.wake_at IS NOT NULL
ORDER BY m.id DESC
LIMIT 1
