-- revive_jobs: let jobs wait again that their gates have ended before they began, as what they need runs again.
-- Fence: none (an operator's retry; only unclaimed jobs that have not begun, under their locks).
-- Rows: one per job revived.
-- Clock: statement_timestamp().
WITH revived AS MATERIALIZED (
    SELECT
        j.id,
        CASE
            WHEN j.key IS NULL OR j.key_scope NOT IN ('until_finished', 'until_started') THEN NULL
            -- Of several with one key, the first takes it; and none if an unfinished job has it.
            WHEN row_number() OVER (PARTITION BY j.queue, j.key ORDER BY j.finished_at IS NOT NULL, j.id) > 1 THEN NULL
            WHEN (
                SELECT true
                FROM pgjobs_job AS rival
                WHERE rival.queue = j.queue
                  AND rival.unique_key = j.key
                  AND rival.unique_key IS NOT NULL
                  AND rival.finished_at IS NULL
                  AND rival.id <> j.id
                LIMIT 1
            ) THEN NULL
            ELSE j.key
        END AS unique_key
    FROM pgjobs_job AS j
    WHERE j.id = ANY (%(ids)s::bigint[])
)
UPDATE pgjobs_job AS j
SET outcome = NULL,
    finished_at = NULL,
    ending = NULL,
    ending_attempt = 0,
    claim_id = NULL,
    overdue_at = NULL,
    result = NULL,
    error = '',
    error_class = NULL,
    duration_seconds = NULL,
    hold = 'blocked',
    flow = j.flow & ~256, -- is not being undone
    cancel_requested_at = NULL,
    cancel_by = '',
    cancel_mode = '',
    cancel_reason = '',
    ready_at = statement_timestamp(),
    -- As a retry.
    deadline = CASE WHEN j.deadline > statement_timestamp() THEN j.deadline END,
    expires_at = CASE WHEN j.expires_at > statement_timestamp() THEN j.expires_at END,
    unique_key = (SELECT k.unique_key FROM revived AS k WHERE k.id = j.id AND k.unique_key IS NOT NULL)
WHERE j.id = ANY (ARRAY (SELECT id FROM revived)) -- an array, else the planner may walk over all jobs for each of them
  AND j.attempt = 0
  AND (j.claim_id IS NULL OR j.outcome IS NOT NULL)
RETURNING j.id
