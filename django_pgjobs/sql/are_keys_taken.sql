-- are_keys_taken: say whether an unfinished job of the queue has one of these keys now. One index probe per key, regardless of the statistics.
-- Fence: none (reads).
-- Rows: 1 = one of them has; 0 = all keys are free.
-- Clock: none.
SELECT 1
FROM json_array_elements_text(%(keys)s::json) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT 1
    FROM pgjobs_job AS j
    WHERE j.queue = %(queue)s::text AND j.unique_key = wanted.key AND j.unique_key IS NOT NULL AND j.finished_at IS NULL
    LIMIT 1
) AS holder
LIMIT 1
