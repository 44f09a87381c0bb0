-- list_pairs: every (queue, priority) that has a claimable or running row, by one index probe each.
-- Fence: none (reads).
-- Rows: one per pair.
-- Clock: none.
WITH RECURSIVE pairs AS (
    (
        SELECT queue, priority
        FROM pgjobs_job
        WHERE finished_at IS NULL AND hold IS NULL
        ORDER BY queue, priority
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.priority
    FROM pairs,
    LATERAL (
        SELECT j.queue, j.priority
        FROM pgjobs_job AS j
        WHERE j.finished_at IS NULL AND j.hold IS NULL AND (j.queue, j.priority) > (pairs.queue, pairs.priority)
        ORDER BY j.queue, j.priority
        LIMIT 1
    ) AS following
)
SELECT queue, priority FROM pairs
