-- park_jobs: hold jobs that this code cannot run, until other code knows them; the attempt does not count.
-- Fence: required.
-- Rows: one per job parked; a missing one was locked, lost, cancelled in the meantime, or parked before.
-- Clock: none.
WITH parked AS MATERIALIZED (
    SELECT id, claim_id, reason, fingerprint
    FROM json_to_recordset(%(items)s::json) AS p (id bigint, claim_id uuid, reason text, fingerprint text)
),
locked AS MATERIALIZED (
    SELECT j.id, parked.reason, parked.fingerprint
    FROM parked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[parked.id])
    WHERE true
      AND j.claim_id = parked.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND (j.cancel_requested_at IS NULL OR j.ending IS NOT NULL)
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET claim_id = NULL,
    overdue_at = NULL,
    attempt = j.attempt - (j.ending IS NULL AND j.attempt > 0)::integer,
    ending_attempt = j.ending_attempt - (j.ending IS NOT NULL AND j.ending_attempt > 0)::integer,
    hold = 'parked',
    hold_reason = locked.reason,
    hold_fingerprint = locked.fingerprint,
    progress = NULL,
    release_requested_at = NULL
FROM locked
WHERE j.id = ANY (ARRAY[locked.id])
RETURNING j.id
