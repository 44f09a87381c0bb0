-- next_in_turn: the jobs whose turn it is: the first that waits in each of some sequences, unless another has the turn, or, without despite, one before it was abandoned and its sequence waits for that.
-- Fence: none (reads; the caller has locked the sequences by an earlier statement).
-- Rows: one per job: its id.
-- Clock: none.
WITH due AS MATERIALIZED (
    -- One that was locked when it got the turn: its gate is due. Nearly always there is none.
    SELECT j.sequence
    FROM pgjobs_gate AS g
    CROSS JOIN LATERAL (SELECT d.sequence, d.finished_at FROM pgjobs_job AS d WHERE d.id = ANY (ARRAY[g.job_id]) OFFSET 0) AS j
    WHERE g.due AND j.sequence IS NOT NULL AND j.finished_at IS NULL
)
SELECT head.id
FROM (SELECT DISTINCT w.sequence FROM unnest(%(sequences)s::text[]) AS w (sequence)) AS s
CROSS JOIN LATERAL (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.sequence = s.sequence AND j.sequence IS NOT NULL AND j.hold = 'blocked' AND j.finished_at IS NULL
    ORDER BY j.id
    LIMIT 1
) AS head
WHERE (
    SELECT true
    FROM (
        -- Three ranges of the index, so that none of those that wait is read.
        SELECT j.id, j.finished_at, coalesce(j.outcome, j.ending) = 'abandoned' AND j.flow & 128 = 0 AS abandoned
        FROM pgjobs_job AS j
        WHERE j.sequence = s.sequence AND j.sequence IS NOT NULL AND j.hold IS NULL
          AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
        UNION ALL
        SELECT j.id, j.finished_at, coalesce(j.outcome, j.ending) = 'abandoned' AND j.flow & 128 = 0 AS abandoned
        FROM pgjobs_job AS j
        WHERE j.sequence = s.sequence AND j.sequence IS NOT NULL AND j.hold < 'blocked'
          AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
        UNION ALL
        SELECT j.id, j.finished_at, coalesce(j.outcome, j.ending) = 'abandoned' AND j.flow & 128 = 0 AS abandoned
        FROM pgjobs_job AS j
        WHERE j.sequence = s.sequence AND j.sequence IS NOT NULL AND j.hold > 'blocked'
          AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
    ) AS other
    WHERE CASE
        WHEN
            other.finished_at IS NULL
            AND (SELECT g.hands FROM pgjobs_gate AS g WHERE g.job_id = ANY (ARRAY[other.id])) IS DISTINCT FROM 1
        THEN true -- it has the turn
        -- One that was cancelled while it waited never gets it: a worker only ends it.
        ELSE other.abandoned AND other.id < head.id AND NOT %(despite)s::boolean
    END
    LIMIT 1
) IS NULL
AND s.sequence NOT IN (SELECT due.sequence FROM due)
