-- return_dj_queue: let finished jobs of dj-queue wait again, as scheduled: its dispatcher gives them their slots.
-- Fence: none (rows of another queue; only those that are finished).
-- Rows: one per job: its id there.
-- Clock: statement_timestamp().
WITH back AS (
    UPDATE dj_queue_jobs AS p
    SET finished_at = NULL
    WHERE p.id = ANY (%(ids)s::uuid[]) AND p.finished_at IS NOT NULL
    RETURNING p.id, p.backend_alias, p.queue_name, p.priority, p.scheduled_at
)
INSERT INTO dj_queue_scheduled_executions (job_id, backend_alias, queue_name, priority, scheduled_at, created_at)
SELECT
    back.id, back.backend_alias, back.queue_name, back.priority,
    coalesce(back.scheduled_at, statement_timestamp()), statement_timestamp()
FROM back
RETURNING job_id::text
