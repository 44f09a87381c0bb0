-- scan_schema: what a sleeping schema has for a worker; asked of many schemas as one statement, each by its own tables.
-- Fence: none (reads).
-- Rows: 1 = the seconds until the next job of the worker's queues is due, null if there is none; whether there is a duty of any worker within some seconds; whether no worker has led for some seconds.
-- Clock: statement_timestamp().
WITH RECURSIVE pairs AS (
    (
        SELECT queue, priority
        FROM pgjobs_job
        WHERE finished_at IS NULL AND hold IS NULL
        ORDER BY queue, priority
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.priority
    FROM pairs,
    LATERAL (
        SELECT j.queue, j.priority
        FROM pgjobs_job AS j
        WHERE j.finished_at IS NULL AND j.hold IS NULL AND (j.queue, j.priority) > (pairs.queue, pairs.priority)
        ORDER BY j.queue, j.priority
        LIMIT 1
    ) AS following
)
SELECT
    (
        SELECT extract(epoch FROM min(least(ready.run_at, '9999-12-29 00:00Z')) - statement_timestamp())::float8
        FROM pairs,
        LATERAL (
            SELECT j.run_at
            FROM pgjobs_job AS j
            WHERE j.queue = pairs.queue
              AND j.priority = pairs.priority
              AND j.finished_at IS NULL
              AND j.hold IS NULL
              AND j.claim_id IS NULL
            ORDER BY j.run_at, j.id
            LIMIT 1
        ) AS ready
        WHERE (%(queues)s::text[] IS NULL OR pairs.queue = ANY (%(queues)s::text[]))
          AND pairs.queue <> ALL (%(excluded)s::text[])
          AND NOT EXISTS (
              SELECT
              FROM pgjobs_queue_state AS s
              WHERE s.kind = 'queue' AND s.name = pairs.queue AND (s.until IS NULL OR s.until > statement_timestamp())
          )
    ),
    EXISTS (
        SELECT
        FROM pgjobs_claim AS k
        WHERE k.check_at <= statement_timestamp() + make_interval(secs => %(ahead)s::float8)
          AND k.lease_expires_at <= statement_timestamp() + make_interval(secs => %(ahead)s::float8)
    )
    OR (SELECT true FROM pgjobs_gate AS g WHERE g.due ORDER BY g.job_id LIMIT 1) IS NOT NULL
    OR (
        SELECT true FROM pgjobs_job AS j WHERE j.hold = 'limited' ORDER BY j.queue, j.name, j.limit_key LIMIT 1
    ) IS NOT NULL
    OR (
        (SELECT true FROM pgjobs_job AS j WHERE j.hold = 'paused' ORDER BY j.name LIMIT 1) IS NOT NULL
        AND (
            EXISTS (SELECT FROM pgjobs_queue_state AS s WHERE s.until <= statement_timestamp())
            OR NOT EXISTS (SELECT FROM pgjobs_queue_state)
        )
    )
    OR (
        SELECT true
        FROM pgjobs_job AS j
        WHERE j.expires_at <= statement_timestamp() + make_interval(secs => %(ahead)s::float8)
          AND j.finished_at IS NULL
          AND j.claim_id IS NULL
          AND j.ending IS NULL
          AND j.attempt = 0
        ORDER BY j.expires_at
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT true
        FROM pgjobs_cron_entry AS e
        WHERE e.next_fire_at <= statement_timestamp() + make_interval(secs => %(ahead)s::float8)
        ORDER BY e.next_fire_at
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT true
        FROM pgjobs_cron_entry AS e
        WHERE e.next_fire_at IS NULL
          AND e.broken = ''
          -- Its next fire is computed once its job has ended.
          AND (
              e.overlap <> 'after_completion'
              OR (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL LIMIT 1) IS NULL
          )
          AND e.check_at <= statement_timestamp() + make_interval(secs => %(ahead)s::float8)
        ORDER BY e.check_at
        LIMIT 1
    ) IS NOT NULL,
    NOT EXISTS (
        SELECT
        FROM pgjobs_leader_term AS t
        WHERE t.id = 1 AND t.expires_at > statement_timestamp() - make_interval(secs => %(unled)s::float8)
    )
