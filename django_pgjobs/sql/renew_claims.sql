-- renew_claims: extend this worker's leases in one statement; touches and locks no job row.
-- Fence: none (the ledger row is this worker's own; a claim that lost its row is not in the answer).
-- Rows: one per ledger row renewed; a claim_id without a row was rescued.
-- Clock: statement_timestamp().
UPDATE pgjobs_claim AS k
SET lease_expires_at = statement_timestamp() + make_interval(secs => %(lease)s::float8),
    check_at = statement_timestamp() + make_interval(secs => least(%(lease)s::float8, held.check_in))
FROM unnest(%(claim_ids)s::uuid[], %(check_ins)s::float8[]) AS held (claim_id, check_in)
WHERE k.claim_id = held.claim_id
RETURNING k.claim_id
