-- read_procrastinate: jobs of procrastinate that wait, only some or all of them, what a former import has made of each, and whether one of its lock that is not among them runs there or stands before it.
-- Fence: none (reads).
-- Rows: one per job, in the order of their ids; the instants as seconds.
-- Clock: none.
WITH standing AS MATERIALIZED (
    -- By priority, then by id, as its workers take them; before all of them one that runs.
    SELECT b.lock, max(ARRAY[CASE WHEN b.status = 'doing' THEN 2147483648 ELSE b.priority END, -b.id]) AS position
    FROM procrastinate_jobs AS b
    WHERE b.status IN ('todo', 'doing')
      AND b.lock IS NOT NULL
      AND (b.status = 'doing' OR b.id <> ALL (%(ids)s::bigint[]))
    GROUP BY b.lock
)
SELECT
    p.id::text, i.job_id, p.task_name, p.args::text, p.queue_name, p.priority,
    extract(epoch FROM p.scheduled_at)::float8, p.attempts, p.lock, p.queueing_lock, s.position IS NOT NULL AS behind
FROM procrastinate_jobs AS p
LEFT JOIN pgjobs_import AS i ON i.source = 'procrastinate' AND i.source_id = p.id::text
LEFT JOIN standing AS s ON s.lock = p.lock AND s.position > ARRAY[p.priority::bigint, -p.id]
WHERE p.status = 'todo'
  AND p.id > %(after)s::bigint
  AND (%(ids)s::bigint[] IS NULL OR p.id = ANY (%(ids)s::bigint[]))
ORDER BY p.id
LIMIT %(most)s::integer
