-- vacuum_claims: make the room of dead ledger rows free again; as vacuum_jobs.
-- Fence: none (changes no row that is alive).
-- Rows: none.
-- Clock: none.
VACUUM (SKIP_LOCKED, TRUNCATE false, PARALLEL 0) pgjobs_claim
