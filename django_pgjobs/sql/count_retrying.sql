-- count_retrying: jobs that are tried again later, by queue, among the next of each (queue, priority) up to a bound.
-- Fence: none (reads).
-- Rows: one per queue = the queue, how many are tried again, whether the bound was reached.
-- Clock: statement_timestamp().
SELECT listed.queue, sum(later.retrying)::bigint, bool_or(later.jobs = %(most)s::bigint)
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) AS listed (queue, priority)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, count(*) FILTER (WHERE next.attempt > 0) AS retrying
    FROM (
        SELECT j.attempt
        FROM pgjobs_job AS j
        WHERE j.queue = listed.queue
          AND j.priority = listed.priority
          AND j.run_at > statement_timestamp()
          AND j.finished_at IS NULL
          AND j.hold IS NULL
          AND j.claim_id IS NULL
        ORDER BY j.run_at
        LIMIT %(most)s::bigint
    ) AS next
) AS later
GROUP BY listed.queue
