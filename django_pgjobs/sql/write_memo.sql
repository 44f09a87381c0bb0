-- write_memo: remember what a step of a running job came to, under its name; only the first counts.
-- Fence: required.
-- Rows: 1 = remembered; 0 = lost, or remembered before.
-- Clock: statement_timestamp().
WITH held AS MATERIALIZED (
    -- Not FOR SHARE: two steps that begin at the same time would both have to wait for the other to set the flag.
    SELECT j.id, j.flow
    FROM pgjobs_job AS j
    WHERE j.id = ANY (ARRAY[%(id)s::bigint])
      AND j.claim_id = %(claim_id)s::uuid -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE
),
marked AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow | %(flow)s::smallint
    FROM held
    WHERE j.id = ANY (ARRAY[held.id]) AND held.flow & %(flow)s::smallint <> %(flow)s::smallint
)
INSERT INTO pgjobs_memo AS m (
    job_id, name, kind, result, undo, failures, error, claim_id, created_at, finished_at, duration_seconds
)
SELECT
    held.id, %(name)s::text, %(kind)s::text, %(result)s::jsonb, %(undo)s::jsonb, %(failures)s::integer, %(error)s::text,
    %(claim_id)s::uuid, statement_timestamp() - make_interval(secs => %(seconds)s::float8), statement_timestamp(),
    %(seconds)s::float8
FROM held
ON CONFLICT (job_id, name) DO UPDATE
SET result = excluded.result,
    undo = excluded.undo,
    failures = excluded.failures,
    error = excluded.error,
    claim_id = excluded.claim_id,
    wake_at = NULL,
    finished_at = excluded.finished_at,
    duration_seconds = CASE
        WHEN m.kind = 'gather' THEN extract(epoch FROM excluded.finished_at - m.created_at)
        ELSE excluded.duration_seconds
    END
WHERE m.finished_at IS NULL
RETURNING m.id
