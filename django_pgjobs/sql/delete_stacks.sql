-- delete_stacks: delete stacks of jobs that are gone: pruned, deleted at their end, or moved to another database.
-- Fence: none (a stack decides nothing).
-- Rows: 1 = how many were deleted; locked rows wait for the next time.
-- Clock: none.
WITH orphans AS MATERIALIZED (
    SELECT s.id
    FROM pgjobs_stack AS s
    WHERE (SELECT true FROM pgjobs_job AS j WHERE j.id = ANY (ARRAY[s.job_id])) IS NULL
    ORDER BY s.id
    LIMIT %(limit)s::integer
    FOR UPDATE OF s SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_stack AS s
    USING orphans
    WHERE s.id = ANY (ARRAY[orphans.id])
    RETURNING s.id
)
SELECT count(*)::integer FROM gone
