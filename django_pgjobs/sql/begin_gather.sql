-- begin_gather: remember that a running job waits for the jobs of a batch, which this transaction has registered; before, or again for those that failed.
-- Fence: required.
-- Rows: 1 = remembered; 0 = lost, cancelled in the meantime, or another run has begun or finished it.
-- Clock: statement_timestamp().
WITH held AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.id = ANY (ARRAY[%(id)s::bigint])
      AND j.claim_id = %(claim_id)s::uuid -- fence
      AND j.outcome IS NULL -- fence
      AND j.cancel_requested_at IS NULL -- a later cancel finds what it gathers
    FOR NO KEY UPDATE
),
marked AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow | 32
    FROM held
    WHERE j.id = ANY (ARRAY[held.id])
      AND (SELECT true FROM pgjobs_memo AS k WHERE k.job_id = ANY (ARRAY[held.id]) LIMIT 1) IS NULL -- its first memo
)
INSERT INTO pgjobs_memo AS m (job_id, name, kind, event, result, claim_id, wake_at, created_at)
SELECT
    held.id, %(name)s::text, 'gather', %(event)s::text, %(result)s::jsonb, %(claim_id)s::uuid,
    statement_timestamp() + make_interval(secs => %(seconds)s::float8), statement_timestamp()
FROM held
ON CONFLICT (job_id, name) DO UPDATE
SET event = excluded.event,
    result = excluded.result,
    claim_id = excluded.claim_id,
    wake_at = excluded.wake_at
WHERE m.finished_at IS NULL AND m.event IS NOT DISTINCT FROM %(before)s::text
RETURNING m.id
