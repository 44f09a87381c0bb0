-- next_due: seconds until the next job of these pairs is due; reads the future only.
-- Fence: none (reads).
-- Rows: 1, null if nothing is scheduled.
-- Clock: statement_timestamp().
SELECT extract(epoch FROM min(least(upcoming.run_at, '9999-12-29 00:00Z')) - statement_timestamp())::float8
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) AS pair (queue, priority),
LATERAL (
    SELECT j.run_at
    FROM pgjobs_job AS j
    WHERE j.queue = pair.queue
      AND j.priority = pair.priority
      AND j.run_at > statement_timestamp()
      AND j.finished_at IS NULL
      AND j.hold IS NULL
      AND j.claim_id IS NULL
    ORDER BY j.run_at
    LIMIT 1
) AS upcoming
