-- delete_results: delete expired stored results, from the walk's position on.
-- Fence: none (a result belongs to no attempt; a job that finds none runs its body).
-- Rows: 1 = how many were deleted, and when the last of them was stored; locked rows wait for the next walk.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT name, key
    FROM pgjobs_stored_result
    WHERE stored_at <= statement_timestamp() - make_interval(secs => %(seconds)s::float8) AND stored_at >= %(after)s::timestamptz
    ORDER BY stored_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_stored_result AS r
    USING over
    WHERE r.name = ANY (ARRAY[over.name]) AND r.key = ANY (ARRAY[over.key])
    RETURNING r.stored_at
)
SELECT count(*)::integer, max(stored_at)::text FROM gone
