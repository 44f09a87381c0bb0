-- prune_jobs: delete ended jobs with their history, steps, memos, gates and links, unless a retry made them ready since they were listed, or an unfinished job needs them, or their batch has not ended, or they are being undone.
-- Fence: none (only ended jobs; one that an operator has retried has no end, or a later one).
-- Rows: one per job deleted; a missing one was locked, retried, or is gone.
-- Clock: none.
WITH old AS MATERIALIZED (
    SELECT j.id
    FROM unnest(%(ids)s::bigint[]) AS listed (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[listed.id])
    WHERE coalesce(j.finished_at <= %(until)s::timestamptz, false)
      AND (
          j.flow & 3 = 0
          -- Not EXISTS, which the planner may answer with a hash of all links.
          OR (
              (SELECT p.finished_at IS NULL FROM pgjobs_job AS p WHERE p.id = ANY (ARRAY[j.parent_id]) AND j.flow & 1 = 1)
              IS NOT TRUE
              AND (
                  SELECT true
                  FROM pgjobs_link AS l
                  JOIN pgjobs_job AS d ON d.id = ANY (ARRAY[l.job_id])
                  WHERE l.parent_id = ANY (ARRAY[j.id]) AND j.flow & 2 = 2 AND d.finished_at IS NULL
                  LIMIT 1
              ) IS NULL
          )
      )
      AND (
          j.flow & 4 = 0
          OR (
              SELECT true FROM pgjobs_job AS u
              WHERE u.target_id = ANY (ARRAY[j.id]) AND u.target_id IS NOT NULL AND u.finished_at IS NULL
              LIMIT 1
          ) IS NULL
      )
    FOR UPDATE OF j SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_job AS j
    USING old
    WHERE j.id = ANY (ARRAY[old.id])
    RETURNING j.id, j.flow
),
history AS (
    DELETE FROM pgjobs_attempt AS a
    USING gone
    WHERE a.job_id = ANY (ARRAY[gone.id])
),
steps AS (
    DELETE FROM pgjobs_step AS s
    USING gone
    WHERE gone.flow <> 0 AND s.job_id = ANY (ARRAY[gone.id])
),
memos AS (
    DELETE FROM pgjobs_memo AS m
    USING gone
    WHERE gone.flow & 32 = 32 AND m.job_id = ANY (ARRAY[gone.id])
),
gates AS (
    DELETE FROM pgjobs_gate AS g
    USING gone
    WHERE gone.flow & 16 = 16 AND g.job_id = ANY (ARRAY[gone.id])
),
needs AS (
    DELETE FROM pgjobs_link AS l
    USING gone
    WHERE gone.flow & 16 = 16 AND l.job_id = ANY (ARRAY[gone.id])
),
dependents AS (
    DELETE FROM pgjobs_link AS l
    USING gone
    WHERE gone.flow & 2 = 2 AND l.parent_id = ANY (ARRAY[gone.id])
)
SELECT id FROM gone
