-- finalise_success_keyed_fast: finalise_success_fast that also stores results under idempotency keys, the first time.
-- Fence: required.
-- Rows: one per job recorded; a missing one was lost or recorded before. A lock timeout or a deadlock records none.
-- Clock: statement_timestamp().
WITH recorded AS (
    UPDATE pgjobs_job AS j
    SET outcome = 'succeeded',
        finished_at = statement_timestamp(),
        result = nullif(done.result::text, 'null')::jsonb,
        duration_seconds = done.micros::float8 / 1e6::float8,
        worker = %(worker)s::uuid
    FROM ROWS FROM (
        unnest(%(ids)s::bigint[]),
        unnest(%(claims)s::smallint[]),
        unnest(%(micros)s::bigint[]),
        json_array_elements(%(results)s::json)
    ) AS done (id, claim, micros, result)
    WHERE (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL -- evaluated once, before the first row
      -- A text of two values in the place of one result would move the results behind it to other jobs.
      AND json_array_length(%(results)s::json) IN (0, cardinality(%(ids)s::bigint[]))
      AND j.flow & 7 = 0 -- its end counts in no gate
      AND j.id = ANY (ARRAY[done.id])
      AND j.claim_id = (%(claim_ids)s::uuid[])[done.claim] -- fence
      AND j.outcome IS NULL -- fence
    RETURNING
        j.id, j.waited, j.idempotency_key, j.result,
        CASE
            WHEN j.flow = 0 THEN j.name
            ELSE coalesce((SELECT s.name FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.name)
        END AS name,
        CASE
            WHEN j.idempotency_key IS NULL THEN NULL
            ELSE coalesce((SELECT s.payload FROM pgjobs_step AS s WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.payload)::text
        END AS arguments
),
stored AS (
    INSERT INTO pgjobs_stored_result (name, key, job_id, result, stored_at, digest)
    SELECT
        r.name, r.idempotency_key, r.id, r.result, statement_timestamp(),
        -- Without the ids of jobs whose results a flow puts in: they differ each time.
        sha256(convert_to(regexp_replace(r.arguments, '\{"\$result": [0-9]+\}', '0', 'g'), 'UTF8'))
    FROM recorded AS r
    WHERE r.idempotency_key IS NOT NULL
      -- This also sees a result whose delete is not committed yet: the insert would wait for that commit.
      AND NOT EXISTS (
          SELECT FROM pgjobs_stored_result AS s WHERE s.name = r.name AND s.key = r.idempotency_key
      )
    ORDER BY r.name, r.idempotency_key, r.id
    ON CONFLICT DO NOTHING
)
SELECT id, CASE WHEN waited THEN pg_notify('pgjobs_ended', id::text) END FROM recorded
