-- read_turn: what stands before a job in its sequence.
-- Fence: none (reads).
-- Rows: 1: the sequence, how many wait before it, counted up to a limit, the first of these, and those that have the turn or were abandoned so that all wait, each with whether it was; 0 = it waits for no turn.
-- Clock: none.
SELECT
    me.sequence,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM pgjobs_job AS j
            WHERE j.sequence = me.sequence AND j.sequence IS NOT NULL AND j.hold = 'blocked' AND j.finished_at IS NULL AND j.id < me.id
            LIMIT %(most)s::integer
        ) AS waiting
    ),
    (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.sequence = me.sequence AND j.sequence IS NOT NULL AND j.hold = 'blocked' AND j.finished_at IS NULL AND j.id < me.id
        ORDER BY j.id
        LIMIT 1
    ),
    front.ids, front.abandoned
FROM pgjobs_job AS me
JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[me.id])
CROSS JOIN LATERAL (
    SELECT
        coalesce(array_agg(other.id ORDER BY other.id), '{}') AS ids,
        coalesce(array_agg(NOT other.has_turn ORDER BY other.id), '{}') AS abandoned
    FROM (
        SELECT stands.id, stands.has_turn
        FROM (
            SELECT
                j.id, coalesce(j.outcome, j.ending) = 'abandoned' AND j.flow & 128 = 0 AS abandoned,
                j.finished_at IS NULL
                AND (SELECT h.hands FROM pgjobs_gate AS h WHERE h.job_id = ANY (ARRAY[j.id])) IS DISTINCT FROM 1 AS has_turn
            FROM pgjobs_job AS j
            WHERE j.sequence = me.sequence AND j.sequence IS NOT NULL AND j.hold IS DISTINCT FROM 'blocked'
              AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
        ) AS stands
        WHERE stands.has_turn OR (stands.abandoned AND stands.id < me.id)
        ORDER BY stands.id
        LIMIT 5
    ) AS other
) AS front
WHERE me.id = ANY (ARRAY[%(id)s::bigint]) AND me.sequence IS NOT NULL AND g.hands = 1
