-- find_result: read the result stored under an idempotency key.
-- Fence: none (reads; a result is stored once and never changed).
-- Rows: 1 = the job that ran, its result, when it was stored; 0 = none.
-- Clock: none.
SELECT job_id, result::text, stored_at
FROM pgjobs_stored_result
WHERE name = ANY (
        -- A job with steps began as the first of them.
        coalesce(
            (SELECT ARRAY[s.name] FROM pgjobs_step AS s WHERE s.job_id = %(job_id)s::bigint ORDER BY s.id LIMIT 1),
            %(names)s::text[]
        )
    )
  AND key = %(key)s::text
ORDER BY stored_at
LIMIT 1
