-- list_fired: the latest jobs of some cron entries.
-- Fence: none (reads).
-- Rows: one per job, the latest of an entry first = the entry, the job, its state.
-- Clock: none.
SELECT given.name, latest.id, latest.state
FROM unnest(%(names)s::text[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT j.id, coalesce(j.outcome, CASE WHEN j.claim_id IS NOT NULL THEN 'running' ELSE coalesce(j.hold, 'ready') END) AS state
    FROM pgjobs_job AS j
    WHERE j.cron_entry = given.name
    ORDER BY j.id DESC
    LIMIT %(most)s::integer
) AS latest
ORDER BY given.name, latest.id DESC
