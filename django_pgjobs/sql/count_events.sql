-- count_events: jobs that wait for an event, up to a bound, and for how long the first of them has waited.
-- Fence: none (reads).
-- Rows: 1 = how many, whether the bound was reached, the seconds.
-- Clock: statement_timestamp().
SELECT
    count(j.id), count(*) = %(most)s::bigint,
    extract(epoch FROM statement_timestamp() - min(w.created_at) FILTER (WHERE j.id IS NOT NULL))::float8
FROM (
    SELECT m.job_id, m.created_at
    FROM pgjobs_memo AS m
    WHERE m.kind = 'event' AND m.finished_at IS NULL
    LIMIT %(most)s::bigint
) AS w
LEFT JOIN LATERAL (
    SELECT k.id
    FROM pgjobs_job AS k
    WHERE k.id = w.job_id
      AND k.finished_at IS NULL AND k.claim_id IS NULL AND k.ending IS NULL AND k.run_at > statement_timestamp()
    LIMIT 1
) AS j ON true
