-- count_held: held jobs of each (queue, hold), up to a bound, how many of them are tried again at a later time, and since when the first one could run but for the hold.
-- Fence: none (reads).
-- Rows: one per pair with jobs = the queue, the hold, how many, whether the bound was reached, how many are tried again later, the seconds.
-- Clock: statement_timestamp().
SELECT
    listed.queue, listed.hold, held.jobs, held.jobs = %(most)s::bigint, held.retrying,
    extract(epoch FROM statement_timestamp() - held.oldest)::float8
FROM unnest(%(queues)s::text[], %(holds)s::text[]) AS listed (queue, hold)
CROSS JOIN LATERAL (
    SELECT
        count(*) AS jobs,
        count(*) FILTER (
            WHERE first.attempt > 0 AND first.run_at > statement_timestamp() AND listed.hold IN ('limited', 'paused')
        ) AS retrying,
        min(greatest(first.since, '0001-01-03 00:00Z')) FILTER (WHERE first.since <= statement_timestamp()) AS oldest
    FROM (
        SELECT j.attempt, j.run_at, greatest(j.run_at, j.created_at, j.ready_at) AS since
        FROM pgjobs_job AS j
        WHERE j.queue = listed.queue AND j.hold = listed.hold AND j.finished_at IS NULL AND j.claim_id IS NULL
        ORDER BY j.run_at
        LIMIT %(most)s::bigint
    ) AS first
) AS held
WHERE held.jobs > 0
