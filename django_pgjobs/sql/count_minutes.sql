-- count_minutes: what ended in the minutes that began lately, by queue and outcome, by the sums that workers send, however many jobs that were.
-- Fence: none (reads).
-- Rows: one per queue and outcome = the queue, the outcome, how many, whether the bound of rows was reached.
-- Clock: statement_timestamp().
WITH known AS MATERIALIZED (
    (
        SELECT m.queue, m.outcome, m.jobs
        FROM pgjobs_minute AS m
        WHERE m.worker = %(fleet)s::uuid
          AND m.minute > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
        ORDER BY m.minute DESC
        LIMIT %(most)s::integer
    )
    UNION ALL
    (
        SELECT m.queue, m.outcome, m.jobs
        FROM pgjobs_minute AS m
        WHERE m.worker > %(fleet)s::uuid
          AND m.worker < %(trend)s::uuid
          AND m.minute > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
        LIMIT %(most)s::integer
    )
)
SELECT known.queue, known.outcome, sum(known.jobs)::bigint, (SELECT count(*) FROM known) >= %(most)s::integer
FROM known
WHERE known.outcome = ANY (%(outcomes)s::text[])
GROUP BY known.queue, known.outcome
