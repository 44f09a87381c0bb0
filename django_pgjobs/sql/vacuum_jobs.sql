-- vacuum_jobs: make the room of dead jobs free again. Holds up nobody: a table that another has locked is left alone.
-- Fence: none (changes no row that is alive).
-- Rows: none.
-- Clock: none.
VACUUM (SKIP_LOCKED, TRUNCATE false, PARALLEL 0) pgjobs_job
