-- hold_jobs: hold claimed jobs whose name is paused, that this code cannot run, or that an operator's limit must count before they start; the attempt does not count.
-- Fence: required.
-- Rows: one per job held; a missing one was locked, lost, cancelled in the meantime, or held before.
-- Clock: none.
WITH given AS MATERIALIZED (
    SELECT id, claim_id, reason, fingerprint, suspect
    FROM json_to_recordset(%(items)s::json) AS g (id bigint, claim_id uuid, reason text, fingerprint text, suspect boolean)
),
locked AS MATERIALIZED (
    SELECT j.id, given.reason, given.fingerprint, given.suspect
    FROM given
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[given.id])
    WHERE true
      AND j.claim_id = given.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND (j.cancel_requested_at IS NULL OR j.ending IS NOT NULL)
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET claim_id = NULL,
    overdue_at = NULL,
    suspect_attempt = CASE WHEN locked.suspect THEN j.attempt ELSE j.suspect_attempt END,
    attempt = j.attempt - (j.ending IS NULL AND j.attempt > 0)::integer,
    ending_attempt = j.ending_attempt - (j.ending IS NOT NULL AND j.ending_attempt > 0)::integer,
    hold = %(hold)s::text,
    limit_key = CASE WHEN %(hold)s::text = 'limited' THEN coalesce(j.limit_key, '') ELSE j.limit_key END,
    hold_reason = locked.reason,
    hold_fingerprint = coalesce(locked.fingerprint, j.hold_fingerprint),
    progress = NULL,
    expires_at = CASE WHEN locked.suspect IS NOT TRUE THEN j.expires_at END, -- null once it has started
    release_requested_at = NULL
FROM locked
WHERE j.id = ANY (ARRAY[locked.id])
RETURNING j.id
