-- vacuum_jobs: free the space of dead jobs. Delays no one: it skips a table that another transaction has locked.
-- Fence: none (changes no live row).
-- Rows: none.
-- Clock: none.
VACUUM (SKIP_LOCKED, TRUNCATE false, PARALLEL 0) pgjobs_job
