-- delete_lines: delete lines of jobs that are gone without them: deleted in SQL, or at the end of a later attempt. From the walk's position on.
-- Fence: none (a line decides nothing).
-- Rows: 1 = how many jobs were looked at, and the last of them.
-- Clock: none.
WITH RECURSIVE seen (job_id, number) AS (
    (
        SELECT l.job_id, 1 FROM pgjobs_log_line AS l WHERE l.job_id > %(after)s::bigint ORDER BY l.job_id LIMIT 1
    )
    UNION ALL
    SELECT
        (SELECT l.job_id FROM pgjobs_log_line AS l WHERE l.job_id > seen.job_id ORDER BY l.job_id LIMIT 1),
        seen.number + 1
    FROM seen
    WHERE seen.job_id IS NOT NULL AND seen.number < %(limit)s::integer
),
gone AS (
    DELETE FROM pgjobs_log_line AS l
    USING seen
    WHERE l.job_id = ANY (ARRAY[seen.job_id])
      AND (SELECT true FROM pgjobs_job AS j WHERE j.id = ANY (ARRAY[seen.job_id])) IS NULL
)
SELECT count(job_id)::integer, max(job_id)::text FROM seen
