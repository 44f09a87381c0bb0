-- lock_dj_queue: lock jobs of dj-queue that are ready, scheduled or blocked, in the order of their ids; those that its processes have locked are left out.
-- Fence: none (rows of another queue, whose processes lock what they move).
-- Rows: one per job: its id.
-- Clock: none.
WITH ready AS MATERIALIZED (
    SELECT e.job_id
    FROM dj_queue_ready_executions AS e
    WHERE e.job_id > %(after)s::uuid
    ORDER BY e.job_id
    LIMIT %(most)s::integer
    FOR UPDATE SKIP LOCKED
),
scheduled AS MATERIALIZED (
    SELECT e.job_id
    FROM dj_queue_scheduled_executions AS e
    WHERE e.job_id > %(after)s::uuid
    ORDER BY e.job_id
    LIMIT %(most)s::integer
    FOR UPDATE SKIP LOCKED
),
blocked AS MATERIALIZED (
    SELECT e.job_id
    FROM dj_queue_blocked_executions AS e
    WHERE e.job_id > %(after)s::uuid
    ORDER BY e.job_id
    LIMIT %(most)s::integer
    FOR UPDATE SKIP LOCKED
)
SELECT found.job_id::text
FROM (
    SELECT ready.job_id FROM ready
    UNION ALL
    SELECT scheduled.job_id FROM scheduled
    UNION ALL
    SELECT blocked.job_id FROM blocked
) AS found
ORDER BY found.job_id
LIMIT %(most)s::integer
