-- give_up_keys: take keys from jobs that have not been claimed, so that another may have them; these are cancelled next.
-- Fence: none (only jobs nobody has claimed and that still have the key in that queue; compared under the row lock).
-- Rows: one per job that has given its key up, by its id.
-- Clock: statement_timestamp().
WITH wanted AS MATERIALIZED (
    SELECT queue, key, seconds, date_bin(make_interval(secs => seconds), statement_timestamp(), 'epoch'::timestamptz) AS begins_at
    FROM unnest(%(queues)s::text[], %(keys)s::text[], %(windows)s::float8[]) AS w (queue, key, seconds)
),
holders AS MATERIALIZED (
    SELECT j.id, NULL::text AS queue, NULL::text AS key, NULL::timestamptz AS begins_at
    FROM wanted
    JOIN pgjobs_job AS j ON j.queue = ANY (ARRAY[wanted.queue]) AND j.unique_key = ANY (ARRAY[wanted.key])
    WHERE wanted.seconds IS NULL AND j.unique_key IS NOT NULL AND j.finished_at IS NULL
    UNION ALL
    SELECT w.job_id, w.queue, w.key, w.begins_at
    FROM wanted
    JOIN pgjobs_key_window AS w
        ON w.queue = ANY (ARRAY[wanted.queue])
        AND w.key = ANY (ARRAY[wanted.key])
        AND w.begins_at = ANY (ARRAY[wanted.begins_at])
),
held AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.id = ANY (ARRAY (SELECT id FROM holders))
      AND j.finished_at IS NULL AND j.claim_id IS NULL AND j.ending IS NULL
      AND (
          (j.queue, j.unique_key) IN (SELECT queue, key FROM wanted WHERE seconds IS NULL)
          OR j.id = ANY (ARRAY (SELECT id FROM holders WHERE begins_at IS NOT NULL))
      )
    ORDER BY j.id
    FOR NO KEY UPDATE
),
freed AS (
    DELETE FROM pgjobs_key_window AS w
    USING holders
    WHERE w.queue = ANY (ARRAY[holders.queue])
      AND w.key = ANY (ARRAY[holders.key])
      AND w.begins_at = ANY (ARRAY[holders.begins_at])
      AND holders.id IN (SELECT id FROM held)
)
UPDATE pgjobs_job AS j
SET unique_key = NULL
FROM held
WHERE j.id = held.id AND j.finished_at IS NULL AND j.claim_id IS NULL
RETURNING j.id
