-- count_unfinished: how many unfinished jobs queues have, counted no further than needed; each part follows the order of an index.
-- Fence: none (reads).
-- Rows: one per queue = the queue and a number, which is exact up to %(most)s.
-- Clock: none.
SELECT
    bounded.queue,
    (
        SELECT count(*)
        FROM (
            SELECT j.id
            FROM pgjobs_job AS j
            WHERE j.queue = bounded.queue AND j.finished_at IS NULL AND j.hold IS NULL
            ORDER BY j.priority, j.run_at, j.id
            LIMIT %(most)s::bigint
        ) AS claimable
    ) + (
        SELECT count(*)
        FROM (
            SELECT j.id
            FROM pgjobs_job AS j
            WHERE j.queue = bounded.queue AND j.finished_at IS NULL AND j.hold IS NOT NULL
            ORDER BY j.hold, j.run_at, j.id
            LIMIT %(most)s::bigint
        ) AS held
    )
FROM unnest(%(queues)s::text[]) AS bounded (queue)
