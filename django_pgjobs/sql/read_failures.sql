-- read_failures: the jobs that were abandoned between two instants, by name and error class, the oldest up to a bound.
-- Fence: none (reads).
-- Rows: one per group, the largest first, or one without a group = how many jobs were read; the group, how many jobs, the first and the last end, three jobs, their releases; and of all groups how many jobs and groups, the first and the last end.
-- Clock: none.
WITH ended AS MATERIALIZED (
    SELECT j.id, j.queue, j.name, left(j.error_class, 200) AS error_class, j.finished_at
    FROM pgjobs_job AS j
    WHERE j.finished_at IS NOT NULL
      AND j.outcome = 'abandoned'
      AND j.finished_at >= %(after)s::timestamptz
      AND j.finished_at < %(until)s::timestamptz
    ORDER BY j.finished_at
    LIMIT %(most)s::integer
),
grouped AS MATERIALIZED (
    SELECT
        left(e.name, 200) AS name, coalesce(e.error_class, '') AS error_class, count(*) AS jobs,
        min(e.finished_at) AS first_at, max(e.finished_at) AS last_at, (array_agg(e.id))[1:3] AS ids
    FROM ended AS e
    WHERE e.name <> 'pgjobs.notify' -- it delivers the notices
      AND (%(queues)s::text[] IS NULL OR e.queue = ANY (%(queues)s::text[]))
      AND (%(names)s::text[] IS NULL OR e.name = ANY (%(names)s::text[]))
    GROUP BY 1, 2
),
largest AS MATERIALIZED (
    SELECT
        g.name, g.error_class, g.jobs, g.first_at, g.last_at, g.ids,
        (sum(g.jobs) OVER ())::bigint AS all_jobs, count(*) OVER () AS all_groups,
        min(g.first_at) OVER () AS all_first_at, max(g.last_at) OVER () AS all_last_at
    FROM grouped AS g
    ORDER BY g.jobs DESC, g.name, g.error_class
    LIMIT %(groups)s::integer
)
SELECT
    (SELECT count(*) FROM ended),
    l.name, l.error_class, l.jobs, l.first_at, l.last_at, l.ids,
    ARRAY(
        SELECT DISTINCT left(a.release, 200)
        FROM pgjobs_attempt AS a
        WHERE a.job_id = ANY (l.ids) AND a.release <> ''
        ORDER BY 1
        LIMIT 3
    ),
    l.all_jobs, l.all_groups, l.all_first_at, l.all_last_at
FROM (VALUES (1)) AS one (row)
LEFT JOIN largest AS l ON true
ORDER BY l.jobs DESC, l.name, l.error_class
