-- list_held_up: sequences that wait for what becomes of an abandoned job: among the first in which jobs stand, and those of the latest abandoned jobs.
-- Fence: none (reads).
-- Rows: one per sequence, the longest wait first: the queue of its first abandoned job, the sequence, that job, and for how many seconds it has been abandoned.
-- Clock: statement_timestamp().
WITH RECURSIVE standing AS (
    (
        SELECT j.sequence, 1 AS n
        FROM pgjobs_job AS j
        WHERE j.sequence IS NOT NULL
          AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
        ORDER BY j.sequence
        LIMIT 1
    )
    UNION ALL
    SELECT following.sequence, standing.n + 1
    FROM standing,
    LATERAL (
        SELECT j.sequence
        FROM pgjobs_job AS j
        WHERE j.sequence IS NOT NULL AND j.sequence > standing.sequence
          AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
        ORDER BY j.sequence
        LIMIT 1
    ) AS following
    WHERE standing.n < %(most)s::integer
),
latest AS MATERIALIZED (
    SELECT j.sequence
    FROM pgjobs_job AS j
    WHERE j.outcome = 'abandoned' AND j.finished_at IS NOT NULL
    ORDER BY j.finished_at DESC
    LIMIT %(most)s::integer
)
SELECT
    front.queue, s.sequence, front.id,
    greatest(extract(epoch FROM statement_timestamp() - front.finished_at), 0)::float8
FROM (
    SELECT standing.sequence FROM standing
    UNION
    SELECT latest.sequence FROM latest WHERE latest.sequence IS NOT NULL
) AS s
CROSS JOIN LATERAL (
    SELECT j.id, j.queue, j.finished_at
    FROM pgjobs_job AS j
    WHERE j.sequence = s.sequence AND j.sequence IS NOT NULL AND j.hold IS NULL
      AND j.outcome = 'abandoned' AND j.flow & 128 = 0
    ORDER BY j.hold, j.id -- as the index has them: by ids alone the primary key would be read from its beginning
    LIMIT 1
) AS front
WHERE (
    SELECT true
    FROM pgjobs_job AS j
    WHERE j.sequence = s.sequence AND j.sequence IS NOT NULL AND j.hold = 'blocked' AND j.finished_at IS NULL
      AND j.id > front.id
    LIMIT 1
) IS NOT NULL
ORDER BY front.finished_at, front.id
