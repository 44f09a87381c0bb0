-- delete_actions: delete expired records of operators' actions, with their parts, from the walk's position on.
-- Fence: none (a record decides nothing).
-- Rows: 1 = how many were deleted, and when the last of them was done; locked rows wait for the next walk.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT id
    FROM pgjobs_action
    WHERE acted_at <= statement_timestamp() - make_interval(secs => %(seconds)s::float8) AND acted_at >= %(after)s::timestamptz
    ORDER BY acted_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
),
parts AS (
    DELETE FROM pgjobs_action_part AS p
    USING over
    WHERE p.action_id = ANY (ARRAY[over.id])
),
gone AS (
    DELETE FROM pgjobs_action AS a
    USING over
    WHERE a.id = ANY (ARRAY[over.id])
    RETURNING a.acted_at
)
SELECT count(*)::integer, max(acted_at)::text FROM gone
