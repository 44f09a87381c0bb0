-- read_dj_queue: jobs of dj-queue that wait, also for a retry, only some or all of them, and what a former import has made of each.
-- Fence: none (reads).
-- Rows: one per job, in the order of their ids; the instants as seconds.
-- Clock: none.
SELECT
    p.id::text, i.job_id, p.task_path, p.payload::text, p.queue_name, p.priority,
    extract(epoch FROM p.scheduled_at)::float8, p.concurrency_key, f.job_id IS NOT NULL AS failed
FROM dj_queue_jobs AS p
LEFT JOIN dj_queue_claimed_executions AS c ON c.job_id = p.id
LEFT JOIN dj_queue_failed_executions AS f ON f.job_id = p.id
LEFT JOIN pgjobs_import AS i ON i.source = 'dj-queue' AND i.source_id = p.id::text
WHERE p.finished_at IS NULL
  AND c.job_id IS NULL
  AND (f.job_id IS NULL OR f.retry_at IS NOT NULL)
  AND p.id > %(after)s::uuid
  AND (%(ids)s::uuid[] IS NULL OR p.id = ANY (%(ids)s::uuid[]))
ORDER BY p.id
LIMIT %(most)s::integer
