-- count_due: ready jobs by queue, due and to come, each (queue, priority) counted up to a bound.
-- Fence: none (reads).
-- Rows: one per queue = the queue, jobs due, jobs to come, seconds the oldest has been ready and due, whether either bound was reached.
-- Clock: statement_timestamp().
WITH RECURSIVE pairs AS (
    (
        SELECT queue, priority
        FROM pgjobs_job
        WHERE finished_at IS NULL AND hold IS NULL
        ORDER BY queue, priority
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.priority
    FROM pairs,
    LATERAL (
        SELECT j.queue, j.priority
        FROM pgjobs_job AS j
        WHERE j.finished_at IS NULL AND j.hold IS NULL AND (j.queue, j.priority) > (pairs.queue, pairs.priority)
        ORDER BY j.queue, j.priority
        LIMIT 1
    ) AS following
),
listed AS MATERIALIZED (
    SELECT pairs.queue, pairs.priority, over.until AS resumed_at
    FROM pairs
    LEFT JOIN pgjobs_queue_state AS over
        ON over.kind = 'queue' AND over.name = pairs.queue AND over.until <= statement_timestamp()
),
bound AS MATERIALIZED (
    -- Many pairs share the budget of rows to read.
    SELECT least(%(most)s::bigint, greatest(%(budget)s::bigint / greatest(count(*), 1), 1)) AS jobs FROM listed
)
SELECT
    listed.queue,
    sum(due.jobs)::bigint,
    sum(later.jobs)::bigint,
    extract(epoch FROM statement_timestamp() - min(due.oldest))::float8,
    bool_or(due.jobs = bound.jobs),
    bool_or(later.jobs = bound.jobs)
FROM listed
CROSS JOIN bound
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, min(greatest(counted.since, '0001-01-03 00:00Z')) AS oldest -- not -infinity, from which nothing can be subtracted
    FROM (
        -- A job waits since it was last made ready, not since before a rescue, an admission or the end of a pause.
        SELECT greatest(j.run_at, j.created_at, j.ready_at, listed.resumed_at) AS since
        FROM pgjobs_job AS j
        WHERE j.queue = listed.queue
          AND j.priority = listed.priority
          AND j.run_at <= statement_timestamp()
          AND j.finished_at IS NULL
          AND j.hold IS NULL
          AND j.claim_id IS NULL
        ORDER BY j.run_at
        LIMIT (SELECT jobs FROM bound)
    ) AS counted
) AS due
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.queue = listed.queue
          AND j.priority = listed.priority
          AND j.run_at > statement_timestamp()
          AND j.finished_at IS NULL
          AND j.hold IS NULL
          AND j.claim_id IS NULL
        ORDER BY j.run_at
        LIMIT (SELECT jobs FROM bound)
    ) AS counted
) AS later
GROUP BY listed.queue
