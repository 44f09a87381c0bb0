-- copy_special_jobs: copy_jobs with the columns that few jobs have: of keys, tags, deadlines and members.
-- Fence: none (creates rows that no one else sees yet; fails if a key is taken).
-- Rows: none; the ids are known.
-- Clock: run_at and expires_at come from reserve_ids, created_at is the column's default.
COPY pgjobs_job (
    id, name, queue, priority, max_attempts, timeout_seconds, headers, description, run_at, limit_key, hold,
    tags, deadline, expires_at, options, flow, parent_id, target_id, key_scope,
    key, unique_key, idempotency_key, payload
) FROM STDIN (FORMAT binary)
