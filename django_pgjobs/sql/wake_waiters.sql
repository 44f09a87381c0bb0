-- wake_waiters: make jobs ready that wait for an event which this transaction has sent, the first ones by their ids.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job that still waits for the event, with the workers to wake (no priority: admitters) if it was made ready.
-- Clock: statement_timestamp().
WITH waiting AS MATERIALIZED (
    SELECT m.job_id
    FROM pgjobs_memo AS m
    WHERE m.kind = ANY (ARRAY['event', 'gather'])
      AND m.event = %(event)s::text
      AND m.finished_at IS NULL
      AND m.job_id > %(after)s::bigint
    ORDER BY m.job_id
    LIMIT %(most)s::integer
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM waiting
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[waiting.job_id])
    WHERE j.finished_at IS NULL AND j.claim_id IS NULL AND j.ending IS NULL
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
woken AS (
    UPDATE pgjobs_job AS j
    SET run_at = least(j.run_at, statement_timestamp()),
        ready_at = statement_timestamp()
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id]) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority
)
SELECT waiting.job_id, woken.queue, woken.priority
FROM waiting
FULL JOIN woken ON woken.id = waiting.job_id -- FULL, because such a join is never a nested loop
