-- revive_jobs: let jobs wait again that their gates have ended before they began, as what they need runs again.
-- Fence: none (an operator's retry; only unclaimed jobs that have not begun, under their locks).
-- Rows: one per job revived.
-- Clock: statement_timestamp().
UPDATE pgjobs_job AS j
SET outcome = NULL,
    finished_at = NULL,
    ending = NULL,
    ending_attempt = 0,
    claim_id = NULL,
    deadline_at = NULL,
    result = NULL,
    error = '',
    duration_seconds = NULL,
    hold = 'waiting',
    cancel_by = '',
    cancel_mode = '',
    cancel_reason = '',
    ready_at = statement_timestamp(),
    -- As a retry: its key may be another's by now.
    unique_key = CASE
        WHEN j.key IS NULL OR j.key_scope NOT IN ('until_finished', 'until_started') THEN NULL
        WHEN j.finished_at IS NULL AND j.unique_key IS NOT NULL THEN j.unique_key
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
    END
WHERE j.id = ANY (%(ids)s::bigint[])
  AND j.attempt = 0
  AND (j.claim_id IS NULL OR j.outcome IS NOT NULL)
RETURNING j.id
