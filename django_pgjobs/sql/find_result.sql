-- find_result: read the result stored under an idempotency key.
-- Fence: none (reads; a result is stored once and never changed).
-- Rows: 1 = the job that ran, its result, when it was stored, whether it had the arguments of this one; 0 = none.
-- Clock: none.
SELECT
    r.job_id, r.result::text, r.stored_at,
    coalesce(
        r.digest = (
            -- As it was stored; of a job with steps the first one counts.
            SELECT sha256(convert_to(regexp_replace(
                coalesce((SELECT s.payload FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.payload)::text,
                '\{"\$result": [0-9]+\}', '0', 'g'
            ), 'UTF8'))
            FROM pgjobs_job AS j
            WHERE j.id = ANY (ARRAY[%(job_id)s::bigint])
        ),
        true
    ) AS same
FROM pgjobs_stored_result AS r
WHERE r.name = ANY (
        -- A job with steps began as the first of them.
        coalesce(
            (SELECT ARRAY[s.name] FROM pgjobs_step AS s WHERE s.job_id = %(job_id)s::bigint ORDER BY s.id LIMIT 1),
            %(names)s::text[]
        )
    )
  AND r.key = %(key)s::text
ORDER BY r.stored_at
LIMIT 1
