-- postpone_jobs: move the starts of unclaimed jobs without steps or memos that have these keys, as new registrations of the keys ask. One index probe per key, regardless of the statistics.
-- Fence: none (only unclaimed jobs that still have the key in that queue; checked under the row lock).
-- Rows: one per job moved: its position in the input, its id, the workers to wake (no priority: admitters) and whether it may be older than the jobs claimed now.
-- Clock: statement_timestamp().
WITH wanted AS MATERIALIZED (
    SELECT
        w.queue, w.key, coalesce(w.run_at, statement_timestamp()) + make_interval(secs => w.delay) AS run_at, w.deadline,
        coalesce(
            w.expires_at,
            coalesce(w.run_at, statement_timestamp()) + make_interval(secs => w.delay) + make_interval(secs => w.expires)
        ) AS expires_at,
        w.position
    FROM unnest(%(queues)s::text[], %(keys)s::text[], %(run_ats)s::timestamptz[], %(delays)s::float8[], %(deadlines)s::timestamptz[],
        %(expiries)s::timestamptz[], %(expire)s::float8[])
        WITH ORDINALITY AS w (queue, key, run_at, delay, deadline, expires_at, expires, position)
),
locked AS MATERIALIZED (
    SELECT holder.id, ordered.run_at, ordered.deadline, ordered.expires_at, ordered.position
    FROM (SELECT queue, key, run_at, deadline, expires_at, position FROM wanted ORDER BY queue COLLATE "C", key COLLATE "C") AS ordered
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.queue = ordered.queue
          AND j.unique_key = ordered.key
          AND j.unique_key IS NOT NULL
          AND j.finished_at IS NULL
          AND j.claim_id IS NULL
          AND j.ending IS NULL
          AND j.flow & 40 = 0 -- what it has done is done, and it sleeps until its own instant
          AND j.hold IS DISTINCT FROM 'moving'
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS holder
)
UPDATE pgjobs_job AS j
SET -- A job that has failed does not come back before its backoff is over.
    run_at = CASE WHEN j.attempt > 0 THEN greatest(j.run_at, locked.run_at) ELSE locked.run_at END,
    ready_at = statement_timestamp(),
    -- The latest registration counts: with an earlier deadline or expiry, a job that is postponed again and again would never run.
    deadline = locked.deadline,
    expires_at = CASE WHEN j.attempt = 0 THEN locked.expires_at END,
    -- An admitted job would keep its slot while it waits for its instant.
    hold = CASE WHEN j.hold IS NULL AND j.limit_key IS NOT NULL THEN 'limited' ELSE j.hold END
FROM locked
WHERE j.id = ANY (ARRAY[locked.id]) AND j.finished_at IS NULL AND j.claim_id IS NULL
RETURNING
    locked.position, j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority,
    -- Otherwise a near scan finds it.
    j.hold IS NULL AND j.run_at < statement_timestamp() - interval '1 second' AS old
