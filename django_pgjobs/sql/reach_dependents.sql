-- reach_dependents: the jobs whose gates count the ends of some, and, where a flow has ended these before they began, whose gates count theirs.
-- Fence: none (reads).
-- Rows: one per job, those asked for included; one more than the limit if there are more.
-- Clock: none.
WITH RECURSIVE reached AS (
    SELECT w.id, true AS asked FROM unnest(%(ids)s::bigint[]) AS w (id)
    UNION
    SELECT fed.id, false
    FROM reached
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[reached.id])
    CROSS JOIN LATERAL (
        SELECT j.parent_id AS id WHERE j.parent_id IS NOT NULL
        UNION ALL
        SELECT l.job_id FROM pgjobs_link AS l WHERE l.parent_id = ANY (ARRAY[j.id])
    ) AS fed
    WHERE reached.asked OR (j.attempt = 0 AND j.finished_at IS NOT NULL)
)
SELECT DISTINCT id FROM reached LIMIT %(limit)s::integer + 1
