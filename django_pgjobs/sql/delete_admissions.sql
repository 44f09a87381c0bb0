-- delete_admissions: delete starts that are in no rate's window any more, from the walk's position on.
-- Fence: none (expired rows, which are not read).
-- Rows: 1 = how many were deleted, and the last end among them; locked rows wait for the next walk.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT subject, admitted_at
    FROM pgjobs_admission
    WHERE expires_at <= statement_timestamp() AND expires_at >= %(after)s::timestamptz
    ORDER BY expires_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_admission AS p
    USING over
    WHERE p.subject = ANY (ARRAY[over.subject]) AND p.admitted_at = ANY (ARRAY[over.admitted_at])
    RETURNING p.expires_at
)
SELECT count(*)::integer, max(expires_at)::text FROM gone
