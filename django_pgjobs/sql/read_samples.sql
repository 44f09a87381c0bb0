-- read_samples: arguments, headers and limit keys of these jobs.
-- Fence: none (reads).
-- Rows: one per job = id, payload, headers, key of its limits.
-- Clock: none.
SELECT j.id, j.payload::text, j.headers::text, j.limit_key
FROM unnest(%(ids)s::bigint[]) AS i (id)
CROSS JOIN LATERAL (
    SELECT k.id, k.payload, k.headers, k.limit_key
    FROM pgjobs_job AS k
    WHERE k.id = i.id
    OFFSET 0
) AS j
