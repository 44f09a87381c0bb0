-- read_trend: what all jobs together have ended since an instant, by buckets of time, with the minutes that are not added up yet.
-- Fence: none (reads).
-- Rows: one per bucket with ends = its beginning in seconds since 1970, how many ended how as JSON, the histograms of runs and waits, the releases.
-- Clock: statement_timestamp().
WITH bounds AS MATERIALIZED (
    SELECT
        make_interval(secs => %(step)s::float8) AS step,
        date_bin(make_interval(secs => %(step)s::float8), statement_timestamp(), '1970-01-01 00:00Z')
        - make_interval(secs => %(step)s::float8 * (%(buckets)s::integer - 1)) AS since
),
known AS MATERIALIZED (
    (
        SELECT m.minute, m.outcome, m.release, m.jobs, m.run_histogram, m.wait_histogram
        FROM pgjobs_minute AS m
        WHERE m.worker = %(trend)s::uuid AND m.minute >= (SELECT since FROM bounds)
        ORDER BY m.minute DESC
        LIMIT %(most)s::integer
    )
    UNION ALL
    (
        SELECT m.minute, m.outcome, m.release, m.jobs, m.run_histogram, m.wait_histogram
        FROM pgjobs_minute AS m
        WHERE m.worker > %(fleet)s::uuid AND m.worker < %(trend)s::uuid AND m.minute >= (SELECT since FROM bounds)
        LIMIT %(most)s::integer
    )
),
placed AS MATERIALIZED (
    SELECT
        date_bin(bounds.step, known.minute, '1970-01-01 00:00Z') AS bucket, known.outcome, known.release, known.jobs,
        known.run_histogram, known.wait_histogram
    FROM known
    CROSS JOIN bounds
),
counted AS (
    SELECT sums.bucket, json_object_agg(sums.outcome, sums.jobs) AS ended
    FROM (SELECT p.bucket, p.outcome, sum(p.jobs)::bigint AS jobs FROM placed AS p GROUP BY p.bucket, p.outcome) AS sums
    GROUP BY sums.bucket
),
runs AS (
    SELECT slots.bucket, array_agg(slots.jobs ORDER BY slots.n) AS histogram
    FROM (
        SELECT p.bucket, h.n, sum(h.jobs)::bigint AS jobs
        FROM placed AS p
        CROSS JOIN LATERAL unnest(p.run_histogram) WITH ORDINALITY AS h (jobs, n)
        GROUP BY p.bucket, h.n
    ) AS slots
    GROUP BY slots.bucket
),
waits AS (
    SELECT slots.bucket, array_agg(slots.jobs ORDER BY slots.n) AS histogram
    FROM (
        SELECT p.bucket, h.n, sum(h.jobs)::bigint AS jobs
        FROM placed AS p
        CROSS JOIN LATERAL unnest(p.wait_histogram) WITH ORDINALITY AS h (jobs, n)
        GROUP BY p.bucket, h.n
    ) AS slots
    GROUP BY slots.bucket
),
releases AS (
    SELECT p.bucket, array_agg(DISTINCT left(p.release, 200)) AS names FROM placed AS p GROUP BY p.bucket
)
SELECT
    extract(epoch FROM counted.bucket)::bigint, counted.ended::text, coalesce(runs.histogram, '{}'),
    coalesce(waits.histogram, '{}'), releases.names
FROM counted
JOIN releases ON releases.bucket = counted.bucket
LEFT JOIN runs ON runs.bucket = counted.bucket
LEFT JOIN waits ON waits.bucket = counted.bucket
ORDER BY counted.bucket
