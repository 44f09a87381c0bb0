-- list_failing: the names whose attempts fail: of their latest attempts at least so many and such a share have failed, whether they are tried again or not.
-- Fence: none (reads).
-- Rows: one per queue and name, most failures first = the queue, the name, how many attempts failed, how many there were, how many of the failed are tried again, how many seconds that covers.
-- Clock: statement_timestamp().
WITH known AS MATERIALIZED (
    -- Jobs that an operator ended have no run, and the duration of a lost attempt is not known.
    SELECT
        m.queue, m.name, m.minute, m.outcome,
        (SELECT coalesce(sum(h.jobs), 0) FROM unnest(m.run_histogram) AS h (jobs)) AS runs
    FROM (
        (
            SELECT w.queue, w.name, w.minute, w.outcome, w.run_histogram
            FROM pgjobs_minute AS w
            WHERE w.worker = %(fleet)s::uuid
              AND w.minute > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
            ORDER BY w.minute DESC
            LIMIT %(most)s::integer
        )
        UNION ALL
        (
            SELECT w.queue, w.name, w.minute, w.outcome, w.run_histogram
            FROM pgjobs_minute AS w
            WHERE w.worker > %(fleet)s::uuid
              AND w.worker < %(trend)s::uuid
              AND w.minute > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
            LIMIT %(most)s::integer
        )
    ) AS m
    WHERE m.outcome = ANY (%(counted)s::text[])
),
minutes AS (
    SELECT
        k.queue, k.name, k.minute,
        sum(k.runs) AS attempts,
        coalesce(sum(k.runs) FILTER (WHERE k.outcome = ANY (%(failed)s::text[])), 0) AS failed,
        coalesce(sum(k.runs) FILTER (WHERE k.outcome = 'retried'), 0) AS retried
    FROM known AS k
    GROUP BY k.queue, k.name, k.minute
),
ranked AS (
    SELECT
        m.queue, m.name, m.minute, m.attempts, m.failed, m.retried,
        sum(m.attempts) OVER (PARTITION BY m.queue, m.name ORDER BY m.minute DESC) - m.attempts AS later
    FROM minutes AS m
    WHERE m.attempts > 0
)
SELECT
    r.queue, r.name, sum(r.failed)::bigint, sum(r.attempts)::bigint, sum(r.retried)::bigint,
    extract(epoch FROM statement_timestamp() - min(r.minute))::float8
FROM ranked AS r
WHERE r.minute > statement_timestamp() - make_interval(secs => %(recent)s::float8) OR r.later < %(least)s::bigint
GROUP BY r.queue, r.name
HAVING sum(r.failed) >= %(least)s::bigint AND sum(r.failed) >= %(share)s::float8 * sum(r.attempts)
ORDER BY sum(r.failed) DESC, r.queue, r.name
LIMIT %(limit)s::integer
