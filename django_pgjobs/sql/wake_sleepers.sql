-- wake_sleepers: make jobs ready that wait for jobs which have all ended, of the next gathers in the order of their events: what was to wake them is gone. Also find the gathers whose job has ended otherwise, while their batch was not asked to.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per gather looked at: its event, and the job with the workers to wake (no priority: admitters) if it was made ready; and the batch that is to be cancelled.
-- Clock: statement_timestamp().
WITH open AS MATERIALIZED (
    SELECT
        m.job_id, m.event,
        -- A cast in CASE: a malformed value that others wrote spoils no other job's wake-up.
        CASE WHEN m.result ->> 'batch' ~ '^[0-9]{1,18}$' THEN (m.result ->> 'batch')::bigint END AS batch_id
    FROM pgjobs_memo AS m
    WHERE m.kind = 'gather' AND m.finished_at IS NULL AND m.event > %(after)s::text
    ORDER BY m.event
    LIMIT %(limit)s::integer
),
asleep AS MATERIALIZED (
    SELECT sleeper.id
    FROM open
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.id = ANY (ARRAY[open.job_id])
          AND j.finished_at IS NULL
          AND j.claim_id IS NULL
          AND j.ending IS NULL
          AND j.run_at > statement_timestamp() + interval '1 minute' -- one that looks again by itself does so soon
          -- Not EXISTS, which the planner may answer with a hash of all gates.
          AND (
              SELECT g.opened_at IS NULL AND g.pending > 0 FROM pgjobs_gate AS g WHERE g.job_id = ANY (ARRAY[open.batch_id])
          ) IS NOT TRUE
          AND (
              SELECT true
              FROM pgjobs_job AS c
              WHERE c.parent_id = ANY (ARRAY[open.batch_id]) AND c.parent_id IS NOT NULL AND c.finished_at IS NULL
              LIMIT 1
          ) IS NULL
        LIMIT 1
        FOR NO KEY UPDATE OF j SKIP LOCKED
    ) AS sleeper
),
woken AS (
    UPDATE pgjobs_job AS j
    SET run_at = statement_timestamp(),
        ready_at = statement_timestamp()
    WHERE j.id = ANY (ARRAY (SELECT id FROM asleep)) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority
)
SELECT
    open.event, woken.id, woken.queue, woken.priority,
    CASE
        WHEN (SELECT j.outcome FROM pgjobs_job AS j WHERE j.id = ANY (ARRAY[open.job_id])) IN ('abandoned', 'cancelled')
            AND (
                SELECT b.cancel_requested_at IS NULL AND b.finished_at IS NULL
                FROM pgjobs_job AS b
                WHERE b.id = ANY (ARRAY[open.batch_id])
            )
        THEN open.batch_id
    END
FROM open
FULL JOIN woken ON woken.id = open.job_id -- FULL, because such a join is never a nested loop
