-- count_running: claimed jobs by queue, found through the ledger of claims, counted up to a bound.
-- Fence: none (reads).
-- Rows: one per queue = the queue, how many, whether the bound of all was reached.
-- Clock: none.
SELECT counted.queue, count(*), counted.jobs = %(most)s::integer
FROM (
    SELECT claimed.queue, count(*) OVER () AS jobs
    FROM (
        SELECT held.queue
        FROM pgjobs_claim AS k
        CROSS JOIN LATERAL unnest(k.job_ids) AS member (id)
        CROSS JOIN LATERAL (
            SELECT j.queue
            FROM pgjobs_job AS j
            WHERE j.id = member.id AND j.claim_id = k.claim_id AND j.outcome IS NULL
            LIMIT 1
        ) AS held
        LIMIT %(most)s::integer
    ) AS claimed
) AS counted
GROUP BY counted.queue, counted.jobs
