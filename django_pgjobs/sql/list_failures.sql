-- list_failures: the jobs that were abandoned lately, by name and error class, the latest up to a bound.
-- Fence: none (reads).
-- Rows: one per group, the largest first = the name, the error class, how many, the seconds since the last, the last job and its release; of all, how many jobs were read.
-- Clock: statement_timestamp().
WITH ended AS MATERIALIZED (
    SELECT j.id, j.name, left(j.error_class, 200) AS error_class, j.finished_at
    FROM pgjobs_job AS j
    WHERE j.finished_at IS NOT NULL
      AND j.outcome = 'abandoned'
      AND j.finished_at >= statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    ORDER BY j.finished_at DESC
    LIMIT %(most)s::integer
),
grouped AS MATERIALIZED (
    SELECT
        e.name, coalesce(e.error_class, '') AS error_class, count(*) AS jobs, max(e.finished_at) AS last_at,
        (array_agg(e.id ORDER BY e.finished_at DESC))[1] AS last_id
    FROM ended AS e
    GROUP BY 1, 2
    ORDER BY jobs DESC, e.name, error_class
    LIMIT %(groups)s::integer
)
SELECT
    g.name, g.error_class, g.jobs, extract(epoch FROM statement_timestamp() - g.last_at)::float8, g.last_id,
    coalesce(
        (
            SELECT left(a.release, 200)
            FROM pgjobs_attempt AS a
            WHERE a.job_id = g.last_id
            ORDER BY a.id DESC
            LIMIT 1
        ),
        ''
    ),
    (SELECT count(*) FROM ended)
FROM grouped AS g
ORDER BY g.jobs DESC, g.name, g.error_class
