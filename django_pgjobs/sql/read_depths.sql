-- read_depths: the most that waited in each queue since an instant, by buckets of time.
-- Fence: none (reads).
-- Rows: one per bucket and queue = its beginning in seconds since 1970, the queue, the most due, the greatest age of the oldest in seconds.
-- Clock: statement_timestamp().
SELECT
    extract(epoch FROM known.bucket)::bigint, known.queue, max(known.ready)::bigint,
    coalesce(max(known.oldest_seconds), 0)::float8
FROM (
    SELECT
        date_bin(make_interval(secs => %(step)s::float8), d.minute, '1970-01-01 00:00Z') AS bucket, d.queue, d.ready,
        d.oldest_seconds
    FROM pgjobs_depth AS d
    WHERE d.minute >= date_bin(make_interval(secs => %(step)s::float8), statement_timestamp(), '1970-01-01 00:00Z')
        - make_interval(secs => %(step)s::float8 * (%(buckets)s::integer - 1))
    ORDER BY d.minute DESC
    LIMIT %(most)s::integer
) AS known
GROUP BY known.bucket, known.queue
ORDER BY known.bucket, known.queue
