-- reschedule_jobs: move unclaimed jobs to another instant, queue or priority, unless their key is taken in that queue.
-- Fence: none (only jobs nobody has claimed; compared under the row lock).
-- Rows: one per job moved, with whom to wake (no priority: those who let jobs in) and whether it may be older than what is claimed now, and one per job that was not as its key is taken.
-- Clock: statement_timestamp().
WITH held AS MATERIALIZED (
    SELECT id, unique_key, queue, coalesce(%(queue)s::text, queue) AS wanted
    FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL AND claim_id IS NULL
    ORDER BY id
    FOR NO KEY UPDATE
),
judged AS MATERIALIZED (
    SELECT
        held.id, held.wanted,
        held.unique_key IS NULL
        OR held.queue = held.wanted
        OR (
            row_number() OVER (PARTITION BY held.unique_key ORDER BY held.queue <> held.wanted, held.id) = 1
            AND (
                -- Not EXISTS, which may be answered by a hash of all keys.
                SELECT true
                FROM pgjobs_job AS rival
                WHERE rival.queue = held.wanted
                  AND rival.unique_key = held.unique_key
                  AND rival.unique_key IS NOT NULL
                  AND rival.finished_at IS NULL
                  AND rival.id <> held.id
                LIMIT 1
            ) IS NULL
        ) AS free
    FROM held
),
moved AS (
    UPDATE pgjobs_job AS j
    SET run_at = coalesce(
            %(run_at)s::timestamptz,
            statement_timestamp() + make_interval(secs => %(delay)s::float8),
            j.run_at
        ),
        queue = coalesce(%(queue)s::text, j.queue),
        -- A new priority is no new wait; another instant or queue is.
        ready_at = CASE
            WHEN coalesce(%(queue)s::text, j.queue) <> j.queue
              OR coalesce(%(run_at)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay)s::float8)) IS NOT NULL
            THEN statement_timestamp()
            ELSE j.ready_at
        END,
        priority = coalesce(%(priority)s::smallint, j.priority),
        limit_key = CASE WHEN %(limited)s::boolean THEN coalesce(j.limit_key, '') ELSE j.limit_key END,
        -- Let in it would keep its place while it waits for its instant, and was never let into another queue.
        hold = CASE
            WHEN j.hold IS NULL AND j.ending IS NULL AND (j.limit_key IS NOT NULL OR %(limited)s::boolean) THEN 'limited'
            ELSE j.hold
        END
    WHERE j.id = ANY (ARRAY (SELECT id FROM judged WHERE free)) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING
        j.id, j.queue, CASE WHEN j.hold IS DISTINCT FROM 'limited' THEN j.priority END AS priority,
        -- Else a look a little behind the frontier finds it.
        j.hold IS NULL AND j.run_at < statement_timestamp() - interval '1 second' AS old
)
SELECT id, false AS taken, queue, priority, old FROM moved
UNION ALL
SELECT id, true, NULL, NULL, NULL FROM judged WHERE NOT free
