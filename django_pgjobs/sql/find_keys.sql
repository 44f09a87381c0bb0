-- find_keys: tell which jobs have these keys now, or have taken them for the window of now.
-- Fence: none (reads).
-- Rows: one per key that is taken: its place in the input, the job's id, whether it has started; the job of a window may be gone.
-- Clock: statement_timestamp().
WITH wanted AS MATERIALIZED (
    SELECT
        queue, key, seconds, position,
        date_bin(make_interval(secs => seconds), statement_timestamp(), 'epoch'::timestamptz) AS begins_at
    FROM unnest(%(queues)s::text[], %(keys)s::text[], %(windows)s::float8[])
        WITH ORDINALITY AS w (queue, key, seconds, position)
),
holders AS (
    SELECT wanted.position, j.id
    FROM wanted
    JOIN pgjobs_job AS j ON j.queue = ANY (ARRAY[wanted.queue]) AND j.unique_key = ANY (ARRAY[wanted.key])
    WHERE wanted.seconds IS NULL AND j.unique_key IS NOT NULL AND j.finished_at IS NULL
    UNION ALL
    SELECT wanted.position, w.job_id
    FROM wanted
    JOIN pgjobs_key_window AS w
        ON w.queue = ANY (ARRAY[wanted.queue])
        AND w.key = ANY (ARRAY[wanted.key])
        AND w.begins_at = ANY (ARRAY[wanted.begins_at])
)
SELECT
    holders.position, holders.id,
    NOT EXISTS (
        SELECT
        FROM pgjobs_job AS j
        WHERE j.id = holders.id AND j.finished_at IS NULL AND j.claim_id IS NULL AND j.ending IS NULL
    ) AS started
FROM holders
