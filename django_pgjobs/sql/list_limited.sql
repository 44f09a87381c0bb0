-- list_limited: every group (queue, name) with a job that a limit holds, by one index probe each.
-- Fence: none (reads).
-- Rows: one per queue and name after (%(after_queue)s, %(after_name)s), in that order, up to a bound.
-- Clock: none.
WITH RECURSIVE blocked AS (
    (
        SELECT queue, name
        FROM pgjobs_job
        WHERE hold = 'limited' AND (queue, name) > (%(after_queue)s::text, %(after_name)s::text)
        ORDER BY queue, name
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.name
    FROM blocked,
    LATERAL (
        SELECT j.queue, j.name
        FROM pgjobs_job AS j
        WHERE j.hold = 'limited' AND (j.queue, j.name) > (blocked.queue, blocked.name)
        ORDER BY j.queue, j.name
        LIMIT 1
    ) AS following
)
SELECT queue, name FROM blocked LIMIT %(limit)s::integer
