-- list_actions: the latest actions of operators that changed one job.
-- Fence: none (reads).
-- Rows: one per action, the latest first.
-- Clock: none.
SELECT a.id, a.acted_at, a.verb, a.mode, a.via, a.acted_by, a.reason, a.asked, a.changed, a.subject
FROM pgjobs_action AS a
WHERE a.id = ANY (ARRAY (
    -- Found once: beside emptied statistics a planner would ask for each action which of the parts are the job's.
    SELECT DISTINCT p.action_id + 0 AS action_id
    FROM pgjobs_action_part AS p
    -- The index has the range of ids of each part; few ranges contain this id.
    WHERE int8range(p.first_id, p.last_id, '[]') @> %(id)s::bigint AND p.job_ids @> ARRAY[%(id)s::bigint]
    ORDER BY action_id DESC
    LIMIT %(limit)s::integer
))
ORDER BY a.id DESC
