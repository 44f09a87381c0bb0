-- list_running: what some workers run now, the longest first, up to a bound for each.
-- Fence: none (reads).
-- Rows: one per job = the worker, the job, its name and queue, for how many seconds it has been claimed, its progress as text.
-- Clock: statement_timestamp().
SELECT given.worker, held.id, held.name, held.queue, held.seconds, held.progress
FROM unnest(%(workers)s::uuid[]) AS given (worker)
CROSS JOIN LATERAL (
    SELECT
        j.id, left(j.name, 200) AS name, left(j.queue, 200) AS queue,
        coalesce(extract(epoch FROM statement_timestamp() - j.claimed_at), 0)::float8 AS seconds,
        left(j.progress::text, 500) AS progress
    FROM pgjobs_claim AS k
    CROSS JOIN LATERAL unnest(k.job_ids) AS claimed (id)
    JOIN pgjobs_job AS j ON j.id = claimed.id AND j.claim_id = k.claim_id
    WHERE k.worker = given.worker AND j.outcome IS NULL
    ORDER BY j.claimed_at, j.id
    LIMIT %(most)s::integer
) AS held
ORDER BY given.worker, held.seconds DESC, held.id
