-- delete_results: delete stored results whose time is over.
-- Fence: none (a result belongs to no attempt; whoever misses it runs the body).
-- Rows: one per result deleted; one that somebody holds is left for the next time.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT name, key
    FROM pgjobs_stored_result
    WHERE stored_at <= statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    ORDER BY stored_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgjobs_stored_result AS r
USING over
WHERE r.name = ANY (ARRAY[over.name]) AND r.key = ANY (ARRAY[over.key])
RETURNING r.job_id
