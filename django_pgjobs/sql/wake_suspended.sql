-- wake_suspended: let suspended jobs continue now, except those that wait for gathered jobs: a sleep is over, a wait has timed out, a step is tried again.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job made ready, with the workers to wake (no priority: admitters).
-- Clock: statement_timestamp().
WITH woken AS (
    UPDATE pgjobs_job AS j
    SET run_at = least(j.run_at, statement_timestamp()),
        ready_at = statement_timestamp()
    WHERE j.id = ANY (%(ids)s::bigint[])
      AND j.finished_at IS NULL
      AND j.claim_id IS NULL
      AND j.ending IS NULL
      AND (
          -- Not EXISTS, which the planner may answer with a hash of all memos.
          SELECT true
          FROM pgjobs_memo AS m
          WHERE m.job_id = j.id AND m.finished_at IS NULL AND m.kind <> 'gather'
            -- One that was woken before, and has not run since, is left alone.
            AND (m.wake_at > statement_timestamp() OR (m.wake_at IS NOT NULL AND j.run_at > statement_timestamp()))
          LIMIT 1
      ) IS NOT NULL
    RETURNING j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority
),
over AS (
    UPDATE pgjobs_memo AS m
    SET wake_at = statement_timestamp()
    FROM woken
    WHERE m.job_id = ANY (ARRAY[woken.id]) AND m.finished_at IS NULL AND m.wake_at > statement_timestamp() AND m.kind <> 'gather'
)
SELECT id, queue, priority FROM woken
