-- lock_jobs: keep registrations, claims and ends out until this transaction has ended; readers are not kept out.
-- Fence: none (locks).
-- Rows: 0.
-- Clock: none.
LOCK TABLE pgjobs_job IN SHARE ROW EXCLUSIVE MODE
