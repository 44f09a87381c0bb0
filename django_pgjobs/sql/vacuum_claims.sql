-- vacuum_claims: free the space of dead ledger rows; as vacuum_jobs.
-- Fence: none (changes no live row).
-- Rows: none.
-- Clock: none.
VACUUM (SKIP_LOCKED, TRUNCATE false, PARALLEL 0) pgjobs_claim
