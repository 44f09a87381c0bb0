-- wait_again: let retried jobs of sequences wait for their turn once more, each in its old place.
-- Fence: none (an operator's retry; only unclaimed jobs, under their locks).
-- Rows: none.
-- Clock: none.
WITH waiting AS (
    UPDATE pgjobs_job AS j
    SET hold = 'blocked', flow = j.flow | 16
    WHERE j.id = ANY (%(ids)s::bigint[]) AND j.sequence IS NOT NULL AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id
)
INSERT INTO pgjobs_gate (job_id, pending, hands, eager)
SELECT id, 1, 1, true FROM waiting
ON CONFLICT (job_id) DO UPDATE SET pending = 1, hands = 1, due = false, opened_at = NULL
