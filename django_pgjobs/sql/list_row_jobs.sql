-- list_row_jobs: the names of the jobs of schedules made at run time, however many schedules there are.
-- Fence: none (reads).
-- Rows: one per name, with its fingerprint as workers noted it, null if none did, and the seconds since one confirmed it.
-- Clock: statement_timestamp().
WITH RECURSIVE named AS (
    (
        SELECT e.job_name
        FROM pgjobs_cron_entry AS e
        WHERE e.origin = 'row'
        ORDER BY e.job_name
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT e.job_name
        FROM pgjobs_cron_entry AS e
        WHERE e.origin = 'row' AND e.job_name > n.job_name
        ORDER BY e.job_name
        LIMIT 1
    )
    FROM named AS n
    WHERE n.job_name IS NOT NULL
)
SELECT n.job_name, k.fingerprint, extract(epoch FROM statement_timestamp() - k.confirmed_at)::float8
FROM named AS n
LEFT JOIN pgjobs_known_job AS k ON k.name = n.job_name
WHERE n.job_name IS NOT NULL
