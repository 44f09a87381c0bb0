-- copy_jobs: bulk insert with ids that reserve_ids took beforehand.
-- Fence: none (creates rows that no one else sees yet).
-- Rows: none; the ids are known.
-- Clock: run_at comes from reserve_ids, created_at is the column's default.
COPY pgjobs_job (
    id, name, queue, priority, max_attempts, timeout_seconds, headers, description, run_at, limit_key, hold, payload
) FROM STDIN (FORMAT binary)
