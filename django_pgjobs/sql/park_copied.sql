-- park_copied: hold all that could run in the copy of a database until an operator retries it; what needs others waits for them.
-- Fence: none (under the lock of the table, in a database that no worker serves).
-- Rows: 1 = how many jobs were held.
-- Clock: none.
WITH held AS (
    UPDATE pgjobs_job
    SET hold = 'parked',
        hold_reason = %(reason)s::text,
        hold_fingerprint = %(fingerprint)s::text, -- no code resumes it
        attempt = attempt - (claim_id IS NOT NULL AND ending IS NULL AND attempt > 0)::integer,
        ending_attempt = ending_attempt - (claim_id IS NOT NULL AND ending IS NOT NULL AND ending_attempt > 0)::integer,
        expires_at = NULL, -- its end would call its callback here
        overdue_at = NULL,
        progress = NULL,
        release_requested_at = NULL,
        claim_id = NULL
    WHERE finished_at IS NULL AND (claim_id IS NOT NULL OR coalesce(hold, '') NOT IN ('blocked', 'moving'))
    RETURNING id
),
kept AS (
    UPDATE pgjobs_job
    SET expires_at = NULL
    WHERE finished_at IS NULL AND claim_id IS NULL AND hold IN ('blocked', 'moving') AND expires_at IS NOT NULL
),
unclaimed AS (DELETE FROM pgjobs_claim),
left_behind AS (DELETE FROM pgjobs_heartbeat)
SELECT count(*) FROM held
