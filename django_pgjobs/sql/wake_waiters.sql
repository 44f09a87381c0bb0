-- wake_waiters: make jobs ready that wait for an event which this transaction has sent, the first ones by their ids.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job that still waits for the event, with the workers to wake (no priority: admitters) if it was made ready.
-- Clock: statement_timestamp().
WITH open AS MATERIALIZED ( -- else a planner that expects one waiter walks all memos in the order of their jobs
    SELECT m.job_id
    FROM pgjobs_memo AS m
    WHERE m.kind = ANY (ARRAY['event', 'gather']) AND m.event = %(event)s::text AND m.finished_at IS NULL
),
waiting AS MATERIALIZED (
    SELECT job_id
    FROM open
    WHERE job_id > %(after)s::bigint
    ORDER BY job_id
    LIMIT %(most)s::integer
),
locked AS MATERIALIZED (
    SELECT waiter.id
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.id = waiting.job_id AND j.finished_at IS NULL AND j.claim_id IS NULL AND j.ending IS NULL
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS waiter
),
woken AS (
    UPDATE pgjobs_job AS j
    SET run_at = least(j.run_at, statement_timestamp()),
        ready_at = statement_timestamp()
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority
)
SELECT waiting.job_id, woken.queue, woken.priority
FROM waiting
FULL JOIN woken ON woken.id = waiting.job_id -- FULL, because such a join is never a nested loop
