-- list_held_pairs: every (queue, hold) that has a held job, by one index probe each.
-- Fence: none (reads).
-- Rows: one per pair.
-- Clock: none.
WITH RECURSIVE pairs AS (
    (
        SELECT queue, hold
        FROM pgjobs_job
        WHERE finished_at IS NULL AND hold IS NOT NULL
        ORDER BY queue, hold
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.hold
    FROM pairs,
    LATERAL (
        SELECT j.queue, j.hold
        FROM pgjobs_job AS j
        WHERE j.finished_at IS NULL AND j.hold IS NOT NULL AND (j.queue, j.hold) > (pairs.queue, pairs.hold)
        ORDER BY j.queue, j.hold
        LIMIT 1
    ) AS following
)
SELECT queue, hold FROM pairs
