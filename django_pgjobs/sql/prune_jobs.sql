-- prune_jobs: delete ended jobs with their history and their steps, unless a retry made them ready since they were listed.
-- Fence: none (only ended jobs; one that an operator has retried has no end, or a later one).
-- Rows: one per job deleted; a missing one was locked, retried, or is gone.
-- Clock: none.
WITH old AS MATERIALIZED (
    SELECT j.id
    FROM unnest(%(ids)s::bigint[]) AS listed (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[listed.id])
    WHERE coalesce(j.finished_at <= %(until)s::timestamptz, false)
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
)
SELECT id FROM gone
