-- mend_undoing: of the next jobs that are to be undone, find those that nothing undoes any more, and forget those whose undo was cancelled or has given up.
-- Fence: none (only ended jobs that are to be undone; checked under the row lock).
-- Rows: one per job looked at, and whether the caller has to register what undoes it, in this transaction; a locked one is left for the next time.
-- Clock: none.
WITH wanted AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.flow >= 256 AND j.id > %(after)s::bigint
    ORDER BY j.id
    LIMIT %(limit)s::integer
),
held AS MATERIALIZED (
    SELECT j.id
    FROM wanted
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[wanted.id])
    WHERE j.flow >= 256 AND j.outcome IN ('abandoned', 'cancelled')
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT held.id, coalesce(undo.runs, false) AS runs, coalesce(undo.over, false) AS over
    FROM held
    LEFT JOIN LATERAL (
        SELECT
            u.finished_at IS NULL AS runs,
            -- What a row was set to by hand does not say that it has tried each part.
            u.outcome = 'cancelled' OR (u.outcome = 'abandoned' AND u.error_class = 'django_pgjobs.exceptions.Abandon') AS over
        FROM pgjobs_job AS u
        WHERE u.target_id = ANY (ARRAY[held.id]) AND u.target_id IS NOT NULL AND u.name = 'pgjobs.undo'
        ORDER BY u.finished_at IS NULL DESC, u.id DESC
        LIMIT 1
    ) AS undo ON true
),
called_off AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow & ~256
    FROM judged
    WHERE j.id = ANY (ARRAY[judged.id]) AND NOT judged.runs AND judged.over
)
SELECT wanted.id, coalesce(NOT judged.runs AND NOT judged.over, false) AS gone
FROM wanted
FULL JOIN judged ON judged.id = wanted.id -- FULL, because such a join is never a nested loop
