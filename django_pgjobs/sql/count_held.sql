-- count_held: held jobs, by queue and hold, each hold counted up to a bound.
-- Fence: none (reads).
-- Rows: one per queue and hold = the queue, the hold, how many, whether the bound of the hold was reached.
-- Clock: none.
SELECT counted.queue, counted.hold, count(*), counted.jobs = %(most)s::integer
FROM (
    SELECT held.queue, held.hold, count(*) OVER (PARTITION BY held.hold) AS jobs
    FROM unnest(%(holds)s::text[]) AS known (hold),
    LATERAL (
        SELECT j.queue, j.hold
        FROM pgjobs_job AS j
        WHERE j.hold = known.hold AND j.finished_at IS NULL AND j.claim_id IS NULL
        LIMIT %(most)s::integer
    ) AS held
) AS counted
GROUP BY counted.queue, counted.hold, counted.jobs
