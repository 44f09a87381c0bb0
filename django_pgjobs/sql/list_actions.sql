-- list_actions: the latest actions of operators that changed one job.
-- Fence: none (reads).
-- Rows: one per action, the latest first.
-- Clock: none.
SELECT a.id, a.acted_at, a.verb, a.mode, a.via, a.acted_by, a.reason, a.asked, a.changed, a.subject
FROM (
    SELECT DISTINCT p.action_id
    FROM pgjobs_action_part AS p
    -- The index has the range of ids of each part; few ranges contain this id.
    WHERE int8range(p.first_id, p.last_id, '[]') @> %(id)s::bigint AND p.job_ids @> ARRAY[%(id)s::bigint]
    ORDER BY p.action_id DESC
    LIMIT %(limit)s::integer
) AS found
JOIN pgjobs_action AS a ON a.id = ANY (ARRAY[found.action_id])
ORDER BY a.id DESC
