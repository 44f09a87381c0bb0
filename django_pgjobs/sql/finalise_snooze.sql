-- finalise_snooze: make snoozed jobs ready again later; their attempt does not count.
-- Fence: required.
-- Rows: one per job recorded, with its new run_at; a missing one was locked, lost, cancelled in the meantime, or recorded before.
-- Clock: statement_timestamp().
WITH snoozed AS MATERIALIZED (
    SELECT id, claim_id, delay
    FROM json_to_recordset(%(items)s::json) AS s (id bigint, claim_id uuid, delay float8)
),
locked AS MATERIALIZED (
    SELECT j.id, snoozed.delay
    FROM snoozed
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[snoozed.id])
    WHERE true
      AND j.claim_id = snoozed.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND j.cancel_requested_at IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET claim_id = NULL,
    hold = CASE WHEN j.limit_key IS NOT NULL THEN 'limited' END,
    overdue_at = NULL,
    attempt = greatest(j.attempt - 1, 0),
    run_at = statement_timestamp() + make_interval(secs => locked.delay),
    progress = NULL,
    expires_at = NULL, -- it has started
    release_requested_at = NULL
FROM locked
WHERE j.id = ANY (ARRAY[locked.id])
RETURNING j.id, j.run_at, j.queue, j.priority
