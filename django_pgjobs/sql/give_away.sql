-- give_away: delete jobs that have arrived in another database, with all that went with them.
-- Fence: none (only jobs that are held for this move and carry the token of this mover).
-- Rows: one per job deleted.
-- Clock: none.
WITH held AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.id = ANY (%(ids)s::bigint[])
      AND j.hold = 'moving'
      AND j.options #>> '{move,token}' = %(token)s::text
    ORDER BY j.id
    FOR UPDATE
),
gone AS (
    DELETE FROM pgjobs_job AS j
    USING held
    WHERE j.id = ANY (ARRAY[held.id])
    RETURNING j.id, j.flow
),
history AS (
    DELETE FROM pgjobs_attempt AS a
    USING gone
    WHERE a.job_id = ANY (ARRAY[gone.id])
),
lines AS (
    DELETE FROM pgjobs_log_line AS l
    USING gone
    WHERE (SELECT pg_relation_size('pgjobs_log_line') > 0) AND l.job_id = ANY (ARRAY[gone.id])
),
steps AS (
    DELETE FROM pgjobs_step AS s
    USING gone
    WHERE gone.flow <> 0 AND s.job_id = ANY (ARRAY[gone.id])
),
memos AS (
    DELETE FROM pgjobs_memo AS m
    USING gone
    WHERE gone.flow <> 0 AND m.job_id = ANY (ARRAY[gone.id])
)
SELECT id FROM gone
