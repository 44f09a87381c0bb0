-- renew_claims: extend this worker's leases in one statement; touches and locks no job row, and waits for no ledger row.
-- Fence: none (the ledger row is this worker's own; a claim that lost its row is left out).
-- Rows: one per claim whose ledger rows were all renewed; a missing one was rescued, or one of its rows is locked.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT k.claim_id, k.part, asked.check_in
    FROM unnest(%(claim_ids)s::uuid[], %(check_ins)s::float8[]) AS asked (claim_id, check_in)
    JOIN pgjobs_claim AS k ON k.claim_id = asked.claim_id
    FOR NO KEY UPDATE OF k SKIP LOCKED
),
renewed AS (
    UPDATE pgjobs_claim AS k
    SET lease_expires_at = statement_timestamp() + make_interval(secs => %(lease)s::float8),
        check_at = statement_timestamp() + make_interval(secs => least(%(lease)s::float8, locked.check_in))
    FROM locked
    WHERE k.claim_id = locked.claim_id AND k.part = locked.part
    RETURNING k.claim_id
)
SELECT renewed.claim_id
FROM renewed
GROUP BY renewed.claim_id
HAVING count(*) >= (SELECT count(*) FROM pgjobs_claim AS k WHERE k.claim_id = renewed.claim_id)
