-- reschedule_jobs: move unclaimed jobs to another instant, queue or priority, unless their key is taken in that queue.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job moved, with the workers to wake (no priority: admitters) and whether it may be older than the jobs claimed now, and one per job not moved because its key is taken.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT id, unique_key, queue, coalesce(%(queue)s::text, queue) AS wanted
    FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND claim_id IS NULL
    ORDER BY id
    FOR NO KEY UPDATE
),
judged AS MATERIALIZED (
    SELECT
        locked.id, locked.wanted,
        locked.unique_key IS NULL
        OR locked.queue = locked.wanted
        OR (
            row_number() OVER (PARTITION BY locked.unique_key ORDER BY locked.queue <> locked.wanted, locked.id) = 1
            AND (
                -- Not EXISTS, which the planner may answer with a hash of all keys.
                SELECT true
                FROM pgjobs_job AS rival
                WHERE rival.queue = locked.wanted
                  AND rival.unique_key = locked.unique_key
                  AND rival.unique_key IS NOT NULL
                  AND rival.finished_at IS NULL
                  AND rival.id <> locked.id
                LIMIT 1
            ) IS NULL
        ) AS free
    FROM locked
),
moved AS (
    UPDATE pgjobs_job AS j
    SET run_at = coalesce(
            %(run_at)s::timestamptz,
            statement_timestamp() + make_interval(secs => %(delay)s::float8),
            j.run_at
        ),
        queue = coalesce(%(queue)s::text, j.queue),
        -- A new priority starts no new wait; another instant or queue does.
        ready_at = CASE
            WHEN coalesce(%(queue)s::text, j.queue) <> j.queue
              OR coalesce(%(run_at)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s::float8)) IS NOT NULL
            THEN statement_timestamp()
            ELSE j.ready_at
        END,
        priority = coalesce(%(priority)s::smallint, j.priority),
        limit_key = CASE WHEN %(limited)s::boolean THEN coalesce(j.limit_key, '') ELSE j.limit_key END,
        -- An admitted job would keep its slot while it waits for its instant, and has no admission in another queue.
        hold = CASE
            WHEN j.hold IS NULL AND j.ending IS NULL AND (j.limit_key IS NOT NULL OR %(limited)s::boolean) THEN 'limited'
            ELSE j.hold
        END
    WHERE j.id = ANY (ARRAY (SELECT id FROM judged WHERE free)) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING
        j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority,
        -- Otherwise a near scan finds it.
        j.hold IS NULL AND j.run_at < statement_timestamp() - interval '1 second' AS old
)
SELECT id, false AS taken, queue, priority, old FROM moved
UNION ALL
SELECT id, true, NULL, NULL, NULL FROM judged WHERE NOT free
