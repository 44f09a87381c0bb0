-- delete_claims: delete ledger rows whose claim no unfinished job carries any more; waits for no lock.
-- Fence: none (guarded: a claim with an unfinished job stays, so no job is left running without a lease).
-- Rows: one claim_id per ledger row deleted; rescue deals with a missing one.
-- Clock: none.
WITH ended AS MATERIALIZED (
    SELECT k.claim_id, k.part
    FROM pgjobs_claim AS k
    WHERE k.claim_id = ANY (%(claim_ids)s::uuid[])
      AND NOT EXISTS (
        SELECT FROM pgjobs_job AS j
        WHERE j.id = ANY (k.job_ids) AND j.claim_id = k.claim_id AND j.outcome IS NULL
      )
    FOR UPDATE OF k SKIP LOCKED
)
DELETE FROM pgjobs_claim AS k
USING ended
WHERE k.claim_id = ended.claim_id AND k.part = ended.part
RETURNING k.claim_id
