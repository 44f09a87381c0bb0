-- copy_limited_jobs: bulk insert as copy_jobs, where limits hold for some of the jobs.
-- Fence: none (creates rows nobody knows yet).
-- Rows: none; the ids are known.
-- Clock: run_at comes from reserve_ids, created_at is the column's default.
COPY pgjobs_job (
    id, name, queue, priority, max_attempts, timeout_seconds, payload, headers, description, run_at, limit_key, hold
) FROM STDIN
