-- take_moving: take over the next jobs that are held for their move to a database, and read all that goes with them.
-- Fence: creates (a token: a mover that took them before can neither give them away nor keep them any more).
-- Rows: one per job: its id, and its row, attempts, steps, memos and windows of keys, as JSON text; at least one, then as many as the bytes allow.
-- Clock: statement_timestamp().
WITH marked AS MATERIALIZED (
    -- By itself: sorted here, the planner may walk over all jobs by their ids.
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.hold = 'moving' AND j.finished_at IS NULL AND j.claim_id IS NULL AND j.options #>> '{move,to}' = %(target)s::text
),
held AS MATERIALIZED (
    SELECT
        j.id,
        pg_column_size(j.payload) + coalesce(pg_column_size(j.result), 0) + coalesce(
            CASE WHEN j.flow <> 0 THEN (SELECT sum(pg_column_size(m.result)) FROM pgjobs_memo AS m WHERE m.job_id = ANY (ARRAY[j.id])) END, 0
        ) AS bytes
    FROM pgjobs_job AS j
    -- Written so that no partial index matches: the row is read by its id.
    WHERE j.id = ANY (ARRAY (SELECT id FROM marked ORDER BY id LIMIT %(limit)s::integer))
      AND coalesce(j.hold, '') = 'moving' AND j.options #>> '{move,to}' = %(target)s::text
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
fitting AS MATERIALIZED (
    SELECT summed.id
    FROM (SELECT id, bytes, sum(bytes) OVER (ORDER BY id) AS total FROM held) AS summed
    WHERE summed.total - summed.bytes < %(bytes)s::bigint
),
taken AS (
    UPDATE pgjobs_job AS j
    SET options = jsonb_set(j.options, '{move,token}', to_jsonb(%(token)s::text))
    WHERE j.id = ANY (ARRAY (SELECT id FROM fitting))
    RETURNING j.id, to_jsonb(j) AS job, j.flow, j.queue, j.key, j.key_scope
)
SELECT
    taken.id,
    -- By id + 0: for the order of ids alone the planner may walk over all rows of these tables, for each job.
    jsonb_build_object(
        'job', taken.job,
        'attempts', (SELECT jsonb_agg(to_jsonb(a) ORDER BY a.id + 0) FROM pgjobs_attempt AS a WHERE a.job_id = ANY (ARRAY[taken.id])),
        'steps', CASE WHEN taken.flow <> 0 THEN (SELECT jsonb_agg(to_jsonb(s) ORDER BY s.id + 0) FROM pgjobs_step AS s WHERE s.job_id = ANY (ARRAY[taken.id])) END,
        'memos', CASE WHEN taken.flow <> 0 THEN (SELECT jsonb_agg(to_jsonb(m) ORDER BY m.id + 0) FROM pgjobs_memo AS m WHERE m.job_id = ANY (ARRAY[taken.id])) END,
        'windows',
        CASE WHEN taken.key_scope = 'window' THEN (
            SELECT jsonb_agg(to_jsonb(w))
            FROM pgjobs_key_window AS w
            WHERE w.queue = ANY (ARRAY[taken.queue]) AND w.key = taken.key AND w.job_id = taken.id AND w.ends_at > statement_timestamp()
        ) END
    )::text
FROM taken
ORDER BY taken.id
