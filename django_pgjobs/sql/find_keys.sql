-- find_keys: find the jobs that have these keys now, or took them for the current window. One index probe per key, regardless of the statistics.
-- Fence: none (reads).
-- Rows: one per key that is taken: its position in the input, the job's id, whether it has started, its flow, and its name, at first; the job of a window may be gone.
-- Clock: statement_timestamp().
WITH wanted AS MATERIALIZED (
    SELECT
        queue, key, seconds, position,
        date_bin(make_interval(secs => seconds), statement_timestamp(), 'epoch'::timestamptz) AS begins_at
    FROM unnest(%(queues)s::text[], %(keys)s::text[], %(windows)s::float8[])
        WITH ORDINALITY AS w (queue, key, seconds, position)
)
SELECT
    wanted.position, holder.id, holder.started, holder.flow,
    -- Of a job with steps, that of the first.
    coalesce((SELECT s.name FROM pgjobs_step AS s WHERE s.job_id = holder.id ORDER BY s.id LIMIT 1), holder.name)
FROM wanted
CROSS JOIN LATERAL (
    (
        SELECT
            -- One that is moving is left alone.
            j.id, j.claim_id IS NOT NULL OR j.ending IS NOT NULL OR coalesce(j.hold = 'moving', false) AS started, j.flow, j.name
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
        SELECT
            w.job_id,
            -- A scalar, not EXISTS, which the planner may answer with a hash of the whole table.
            coalesce(
                (
                    SELECT
                        j.finished_at IS NOT NULL OR j.claim_id IS NOT NULL OR j.ending IS NOT NULL
                        OR coalesce(j.hold = 'moving', false)
                    FROM pgjobs_job AS j
                    WHERE j.id = w.job_id
                ),
                true
            ),
            (SELECT j.flow FROM pgjobs_job AS j WHERE j.id = w.job_id),
            (SELECT j.name FROM pgjobs_job AS j WHERE j.id = w.job_id)
        FROM pgjobs_key_window AS w
        WHERE w.queue = wanted.queue AND w.key = wanted.key AND w.begins_at = wanted.begins_at
        LIMIT 1
    )
) AS holder
