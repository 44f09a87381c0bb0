-- free_keys: take keys from unclaimed jobs without steps or memos, which the caller cancels next, so that other jobs may have them. One index probe per key, regardless of the statistics.
-- Fence: none (only unclaimed jobs that still have the key in that queue; checked under the row lock).
-- Rows: one per job that has lost its key: its id, and whether it is a member of a batch.
-- Clock: statement_timestamp().
WITH wanted AS MATERIALIZED (
    SELECT queue, key, seconds, date_bin(make_interval(secs => seconds), statement_timestamp(), 'epoch'::timestamptz) AS begins_at
    FROM unnest(%(queues)s::text[], %(keys)s::text[], %(windows)s::float8[]) AS w (queue, key, seconds)
),
holders AS MATERIALIZED (
    SELECT holder.id, wanted.queue, wanted.key, wanted.begins_at
    FROM wanted
    CROSS JOIN LATERAL (
        (
            SELECT j.id
            FROM pgjobs_job AS j
            WHERE wanted.seconds IS NULL
              AND j.queue = wanted.queue
              AND j.unique_key = wanted.key
              AND j.unique_key IS NOT NULL
              AND j.finished_at IS NULL
            LIMIT 1
        )
        UNION ALL
        (
            SELECT w.job_id
            FROM pgjobs_key_window AS w
            WHERE w.queue = wanted.queue AND w.key = wanted.key AND w.begins_at = wanted.begins_at
            LIMIT 1
        )
    ) AS holder
    ORDER BY holder.id
),
locked AS MATERIALIZED (
    SELECT holder.id, holders.queue, holders.key, holders.begins_at
    FROM holders
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.id = holders.id
          AND j.finished_at IS NULL AND j.claim_id IS NULL AND j.ending IS NULL
          AND j.flow & 40 = 0 -- what it has done is done
          AND j.hold IS DISTINCT FROM 'moving'
          AND (holders.begins_at IS NOT NULL OR (j.queue = holders.queue AND j.unique_key = holders.key))
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS holder
),
freed AS (
    DELETE FROM pgjobs_key_window AS w
    USING locked
    WHERE locked.id + 0 = locked.id -- always so, but the planner expects few such rows and begins with them
      AND w.queue = ANY (ARRAY[locked.queue])
      AND w.key = locked.key
      AND w.begins_at = locked.begins_at
)
UPDATE pgjobs_job AS j
SET unique_key = NULL
WHERE j.id = ANY (ARRAY (SELECT id FROM locked)) AND j.finished_at IS NULL AND j.claim_id IS NULL
RETURNING j.id, j.parent_id IS NOT NULL AS is_member
