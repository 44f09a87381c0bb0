-- survey_memos: what these unfinished jobs remember, by names, and the jobs that would undo it.
-- Fence: none (reads).
-- Rows: one per job's name and queue, kind, name without turns and keys, whether it has ended, the undo's name, number of args, names of kwargs, whether its values must be decoded = those, the number of jobs, seconds since the first began, some ids of jobs.
-- Clock: statement_timestamp().
WITH named AS MATERIALIZED (
    SELECT j.id, j.name, j.queue, j.options, j.finished_at
    FROM unnest(%(ids)s::bigint[]) AS i (id)
    CROSS JOIN LATERAL (
        SELECT k.id, k.name, k.queue, k.options, k.finished_at
        FROM pgjobs_job AS k
        WHERE k.id = i.id
        OFFSET 0
    ) AS j
),
remembered AS (
    SELECT n.id, n.name, n.queue, CASE WHEN n.finished_at IS NULL THEN m.kind ELSE 'undo' END AS kind, m.name AS memo, m.finished_at IS NOT NULL AS ended, m.undo, m.created_at
    FROM named AS n
    CROSS JOIN LATERAL (
        SELECT k.kind, k.name, k.finished_at, k.undo, k.created_at
        FROM pgjobs_memo AS k
        WHERE k.job_id = n.id AND (n.finished_at IS NULL OR (k.undo IS NOT NULL AND k.error = ''))
        OFFSET 0
    ) AS m
    UNION ALL
    SELECT n.id, n.name, n.queue, 'each', w.memo, false, NULL, NULL
    FROM named AS n
    CROSS JOIN LATERAL jsonb_object_keys(
        CASE WHEN jsonb_typeof(n.options -> 'each') = 'object' THEN n.options -> 'each' ELSE '{}' END
    ) AS w (memo)
    WHERE n.finished_at IS NULL
),
shaped AS (
    SELECT
        r.id, r.name, r.queue, r.kind, r.ended, r.created_at,
        CASE
            WHEN r.kind = 'event' AND starts_with(r.memo, 'job:') THEN 'job:' || regexp_replace(r.memo, '^job:[0-9]+:', '')
            WHEN r.kind = 'event' THEN split_part(r.memo, ':', 1)
            WHEN r.kind IN ('version', 'each') THEN r.memo
            ELSE substring(r.memo FROM '^(?:[^\\[#]|\\.)*')
        END AS memo,
        r.undo ->> 'name' AS undo,
        CASE
            WHEN jsonb_typeof(r.undo #> '{payload,args}') = 'array' THEN jsonb_array_length(r.undo #> '{payload,args}')
        END AS args,
        CASE
            WHEN jsonb_typeof(r.undo #> '{payload,kwargs}') = 'object'
            THEN ARRAY (SELECT jsonb_object_keys(r.undo #> '{payload,kwargs}'))
        END AS kwargs,
        strpos(r.undo::text, '"$') > 0 AS tagged
    FROM remembered AS r
)
SELECT
    s.name, s.queue, s.kind, s.memo, s.ended, s.undo, s.args, s.kwargs, s.tagged, count(DISTINCT s.id),
    extract(epoch FROM statement_timestamp() - min(s.created_at))::float8,
    (array_agg(DISTINCT s.id))[1:%(samples)s::integer]
FROM shaped AS s
GROUP BY s.name, s.queue, s.kind, s.memo, s.ended, s.undo, s.args, s.kwargs, s.tagged
