-- list_claims: every claim of a worker that still has a ledger row.
-- Fence: none (reads).
-- Rows: one per claim.
-- Clock: none.
SELECT DISTINCT claim_id
FROM pgjobs_claim
WHERE worker = %(worker)s::uuid
