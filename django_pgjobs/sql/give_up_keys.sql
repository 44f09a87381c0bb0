-- give_up_keys: take keys from jobs that have not been claimed, so that another may have them; these are cancelled next.
-- Fence: none (only jobs nobody has claimed; compared under the row lock).
-- Rows: one per job that has given its key up, by its id.
-- Clock: statement_timestamp().
WITH wanted AS MATERIALIZED (
    SELECT queue, key, seconds
    FROM unnest(%(queues)s::text[], %(keys)s::text[], %(windows)s::float8[]) AS w (queue, key, seconds)
),
holders AS MATERIALIZED (
    SELECT j.id
    FROM wanted
    JOIN pgjobs_job AS j ON j.queue = wanted.queue AND j.unique_key = wanted.key
    WHERE wanted.seconds IS NULL AND j.unique_key IS NOT NULL AND j.finished_at IS NULL
    UNION ALL
    SELECT w.job_id
    FROM wanted
    JOIN pgjobs_key_window AS w
        ON w.queue = wanted.queue
        AND w.key = wanted.key
        AND w.begins_at = date_bin(make_interval(secs => wanted.seconds), statement_timestamp(), 'epoch'::timestamptz)
),
held AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.id = ANY (ARRAY (SELECT id FROM holders))
      AND j.finished_at IS NULL AND j.claim_id IS NULL AND j.ending IS NULL
    ORDER BY j.id
    FOR NO KEY UPDATE
),
freed AS (
    DELETE FROM pgjobs_key_window AS w
    USING wanted, held
    WHERE w.queue = wanted.queue
      AND w.key = wanted.key
      AND w.begins_at = date_bin(make_interval(secs => wanted.seconds), statement_timestamp(), 'epoch'::timestamptz)
      AND w.job_id = held.id
)
UPDATE pgjobs_job AS j
SET unique_key = NULL
FROM held
WHERE j.id = held.id AND j.finished_at IS NULL AND j.claim_id IS NULL
RETURNING j.id
