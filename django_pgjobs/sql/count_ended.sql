-- count_ended: jobs that ended lately, by queue and outcome, each outcome counted up to a bound, the latest first.
-- Fence: none (reads).
-- Rows: one per queue and outcome = the queue, the outcome, how many, whether the bound of the outcome was reached.
-- Clock: statement_timestamp().
SELECT counted.queue, counted.outcome, count(*), counted.jobs = %(most)s::integer
FROM (
    SELECT ended.queue, ended.outcome, count(*) OVER (PARTITION BY ended.outcome) AS jobs
    FROM unnest(%(outcomes)s::text[]) AS known (outcome),
    LATERAL (
        SELECT j.queue, j.outcome
        FROM pgjobs_job AS j
        WHERE j.outcome = known.outcome
          AND j.finished_at > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
          AND j.finished_at IS NOT NULL
        ORDER BY j.finished_at DESC
        LIMIT %(most)s::integer
    ) AS ended
) AS counted
GROUP BY counted.queue, counted.outcome, counted.jobs
