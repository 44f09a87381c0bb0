-- first_due: the first due jobs of many (queue, priority) pairs, or the first to run later, by time, then id; no more of a pair than its size. A pair with a hold means the jobs of that queue with that hold.
-- Fence: none (reads).
-- Rows: 1 = the ids in order, the list positions of the pairs they come from, and how many each of these pairs has.
-- Clock: statement_timestamp().
WITH ranked AS MATERIALIZED (
    SELECT pair.ordinal, ready.id, row_number() OVER (ORDER BY ready.run_at, ready.id) AS rank
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(holds)s::text[], %(sizes)s::integer[])
        WITH ORDINALITY AS pair (queue, priority, hold, size, ordinal),
    LATERAL (
        (
            SELECT j.run_at, j.id
            FROM pgjobs_job AS j
            WHERE j.queue = pair.queue AND j.priority = pair.priority AND j.finished_at IS NULL AND j.hold IS NULL
              AND j.claim_id IS NULL
              AND j.run_at >= CASE
                  WHEN %(later)s::boolean THEN statement_timestamp() + interval '1 microsecond' ELSE '-infinity'
              END
              AND j.run_at <= CASE WHEN %(later)s::boolean THEN 'infinity' ELSE statement_timestamp() END
            ORDER BY j.run_at, j.id
            LIMIT pair.size
        )
        UNION ALL
        (
            SELECT j.run_at, j.id
            FROM pgjobs_job AS j
            WHERE j.queue = pair.queue AND j.hold = pair.hold AND j.finished_at IS NULL AND j.claim_id IS NULL
              AND j.run_at > statement_timestamp()
            ORDER BY j.run_at, j.id
            LIMIT CASE WHEN pair.hold IS NULL THEN 0 ELSE pair.size END
        )
    ) AS ready
),
first AS MATERIALIZED (
    SELECT ordinal, id, rank
    FROM ranked
    WHERE rank <= %(limit)s::bigint
),
counted AS (
    SELECT ordinal, count(*) AS jobs
    FROM first
    GROUP BY ordinal
)
SELECT
    (SELECT coalesce(array_agg(id ORDER BY rank), '{}') FROM first),
    (SELECT coalesce(array_agg(ordinal), '{}') FROM counted),
    (SELECT coalesce(array_agg(jobs), '{}') FROM counted)
