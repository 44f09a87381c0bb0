-- list_queue: the next unfinished jobs of a queue after (%(run_at)s, %(id)s), by time, then id; one index range for each priority and each hold.
-- Fence: none (reads).
-- Rows: one per job = its run_at, its id, whether it is waiting, runnable or running, and its run_at as text.
-- Clock: statement_timestamp().
WITH RECURSIVE priorities AS (
    (
        SELECT j.priority
        FROM pgjobs_job AS j
        WHERE j.queue = %(queue)s AND j.finished_at IS NULL AND j.hold IS NULL
        ORDER BY j.priority
        LIMIT 1
    )
    UNION ALL
    SELECT following.priority
    FROM priorities,
    LATERAL (
        SELECT j.priority
        FROM pgjobs_job AS j
        WHERE j.queue = %(queue)s AND j.finished_at IS NULL AND j.hold IS NULL AND j.priority > priorities.priority
        ORDER BY j.priority
        LIMIT 1
    ) AS following
),
holds AS (
    (
        SELECT j.hold
        FROM pgjobs_job AS j
        WHERE j.queue = %(queue)s AND j.finished_at IS NULL AND j.hold IS NOT NULL
        ORDER BY j.hold
        LIMIT 1
    )
    UNION ALL
    SELECT following.hold
    FROM holds,
    LATERAL (
        SELECT j.hold
        FROM pgjobs_job AS j
        WHERE j.queue = %(queue)s AND j.finished_at IS NULL AND j.hold > holds.hold
        ORDER BY j.hold
        LIMIT 1
    ) AS following
),
paused AS MATERIALIZED (
    SELECT kind, name
    FROM pgjobs_queue_state
    WHERE (until IS NULL OR until > statement_timestamp()) AND (kind = 'job' OR name = %(queue)s)
)
SELECT run_at, id, label, run_at::text AS page
FROM (
    SELECT claimable.run_at, claimable.id, claimable.label
    FROM priorities,
    LATERAL (
        SELECT
            j.run_at, j.id,
            CASE
                WHEN j.claim_id IS NOT NULL THEN 'running'
                WHEN EXISTS (SELECT FROM paused WHERE paused.kind = 'queue' OR paused.name = j.name) THEN 'waiting'
                WHEN j.run_at <= statement_timestamp() THEN 'runnable'
                ELSE 'waiting'
            END AS label
        FROM pgjobs_job AS j
        WHERE j.queue = %(queue)s AND j.priority = priorities.priority AND j.finished_at IS NULL AND j.hold IS NULL
          AND (j.run_at, j.id) > (%(run_at)s::timestamptz, %(id)s::bigint)
        ORDER BY j.run_at, j.id
        LIMIT %(limit)s::integer
    ) AS claimable
    UNION ALL
    SELECT held.run_at, held.id, held.label
    FROM holds,
    LATERAL (
        SELECT j.run_at, j.id, CASE WHEN j.claim_id IS NOT NULL THEN 'running' ELSE 'waiting' END AS label
        FROM pgjobs_job AS j
        WHERE j.queue = %(queue)s AND j.hold = holds.hold AND j.finished_at IS NULL
          AND (j.run_at, j.id) > (%(run_at)s::timestamptz, %(id)s::bigint)
        ORDER BY j.run_at, j.id
        LIMIT %(limit)s::integer
    ) AS held
) AS listed
ORDER BY run_at, id
LIMIT %(limit)s::integer
