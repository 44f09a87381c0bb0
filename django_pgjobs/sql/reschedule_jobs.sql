-- reschedule_jobs: move unclaimed jobs to another instant, queue or priority.
-- Fence: none (only jobs nobody has claimed; compared under the row lock).
-- Rows: one per job moved.
-- Clock: statement_timestamp().
WITH held AS MATERIALIZED (
    SELECT id FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND claim_id IS NULL
    ORDER BY id
    FOR NO KEY UPDATE
),
moved AS (
    UPDATE pgjobs_job AS j
    SET run_at = coalesce(
            %(run_at)s::timestamptz,
            statement_timestamp() + make_interval(secs => %(delay)s::float8),
            j.run_at
        ),
        queue = coalesce(%(queue)s::text, j.queue),
        priority = coalesce(%(priority)s::smallint, j.priority)
    FROM held
    WHERE j.id = held.id AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING j.id, j.queue, j.priority
)
SELECT id, queue, priority, pg_notify('pgjobs', priority::text || ':' || queue) FROM moved
