-- read_claim: the jobs that a claim took whose answer was lost.
-- Fence: none (reads).
-- Rows: one per job that carries the claim.
-- Clock: none.
SELECT j.id
FROM pgjobs_claim AS k
JOIN pgjobs_job AS j ON j.id = ANY (k.job_ids) AND j.claim_id = k.claim_id
WHERE k.claim_id = %(claim_id)s::uuid AND j.outcome IS NULL
