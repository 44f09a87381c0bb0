-- prune_jobs: delete ended jobs with their history, lines, steps, memos, gates and links, unless a retry made them ready since they were listed, or something unfinished still needs them or the batch of which they are members: a job, a gather, an undo; an undo and its compensations stay as long as what they have undone.
-- Fence: none (only ended jobs; one that an operator has retried has no end, or a later one).
-- Rows: one per job deleted, with its sequence if it was abandoned and that waited for it; a missing one was locked, retried, is needed, or is gone.
-- Clock: none.
WITH listed AS MATERIALIZED (
    SELECT
        j.id, j.flow, j.xmin AS version,
        j.parent_id AS batch_id, j.target_id AS undone_id
    FROM unnest(%(ids)s::bigint[]) AS w (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[w.id])
    WHERE coalesce(j.finished_at <= %(until)s::timestamptz, false)
),
owners AS MATERIALIZED (
    -- Each batch once, however many of its members are listed. Not EXISTS, which the planner may answer with a hash.
    SELECT
        p.id,
        p.finished_at IS NULL
        OR p.flow & 256 = 256 -- it is to be undone; the job that undoes it may be gone, and is registered again
        -- A job that needs it, as what comes after a batch, may read it and its members.
        OR (
            SELECT true
            FROM pgjobs_link AS l
            JOIN pgjobs_job AS d ON d.id = ANY (ARRAY[l.job_id])
            WHERE l.parent_id = ANY (ARRAY[p.id]) AND p.flow & 2 = 2 AND d.finished_at IS NULL
            LIMIT 1
        ) IS NOT NULL
        -- A durable function has not read yet what it gathered; it may have ended, and be retried.
        OR (
            SELECT true
            FROM pgjobs_memo AS m
            WHERE p.flow & 16 = 16 AND m.kind = 'gather' AND m.event = p.options ->> 'gather' AND m.finished_at IS NULL
            LIMIT 1
        ) IS NOT NULL
        -- It is undone, or a part of it is.
        OR (
            SELECT true FROM pgjobs_job AS u
            WHERE u.target_id = ANY (ARRAY[p.id]) AND u.target_id IS NOT NULL AND u.finished_at IS NULL
            LIMIT 1
        ) IS NOT NULL
        -- It was abandoned, and others of its sequence wait for what becomes of it.
        OR (
            SELECT true
            FROM pgjobs_job AS w
            WHERE p.outcome = 'abandoned' AND p.flow & 128 = 0
              AND w.sequence = p.sequence AND w.sequence IS NOT NULL AND w.hold = 'blocked' AND w.finished_at IS NULL
            LIMIT 1
        ) IS NOT NULL AS needed,
        -- An undo that did not succeed may be taken up again.
        (
            SELECT true FROM pgjobs_job AS u
            WHERE u.target_id = ANY (ARRAY[p.id])
              AND u.target_id IS NOT NULL
              AND p.flow & 4 = 4
              AND u.name = 'pgjobs.undo'
              AND u.outcome IS DISTINCT FROM 'succeeded'
            LIMIT 1
        ) IS NOT NULL AS undoable
    FROM (
        SELECT id FROM listed WHERE flow & 23 <> 0
        UNION
        SELECT batch_id FROM listed WHERE batch_id IS NOT NULL
    ) AS w
    JOIN pgjobs_job AS p ON p.id = ANY (ARRAY[w.id])
),
old AS MATERIALIZED (
    SELECT j.id
    FROM listed
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[listed.id])
    WHERE j.xmin = listed.version -- a registration that needs a job writes its row
      AND listed.id NOT IN (SELECT id FROM owners WHERE needed)
      AND (listed.batch_id IS NULL OR listed.batch_id NOT IN (SELECT id FROM owners WHERE needed OR undoable))
      -- It keeps what is undone from being retried, and from being undone again.
      AND (SELECT true FROM pgjobs_job AS t WHERE t.id = ANY (ARRAY[listed.undone_id])) IS NULL
    FOR UPDATE OF j SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_job AS j
    USING old
    WHERE j.id = ANY (ARRAY[old.id])
    RETURNING j.id, j.flow, CASE WHEN j.outcome = 'abandoned' AND j.flow & 128 = 0 THEN j.sequence END AS sequence
),
history AS (
    DELETE FROM pgjobs_attempt AS a
    USING gone
    WHERE a.job_id = ANY (ARRAY[gone.id])
),
lines AS (
    DELETE FROM pgjobs_log_line AS l
    USING gone
    -- Nothing is looked up while no job keeps lines.
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
SELECT id, sequence FROM gone
