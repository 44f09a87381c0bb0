-- read_why: what says why one job does not run, or what becomes of it, all seen at one instant.
-- Fence: none (reads).
-- Rows: 1; 0 = there is no such job.
-- Clock: statement_timestamp().
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT
        j.id, j.state, j.name, j.queue, j.priority, j.run_at, j.attempt, j.max_attempts, left(j.error, 500) AS error,
        left(j.hold_reason, 500) AS hold_reason, j.ending, j.ending_attempt, j.claimed_at, j.deadline_at, j.finished_at,
        j.duration_seconds, j.cancel_requested_at, j.cancel_mode, left(j.cancel_by, 200) AS cancel_by,
        left(j.cancel_reason, 500) AS cancel_reason, j.release_requested_at, j.idempotency_key,
        CASE WHEN j.outcome IS NOT NULL AND j.key_scope = 'until_finished' THEN j.key ELSE j.unique_key END AS unique_key,
        left(j.limit_key, 200) AS limit_key, j.limit_key AS whole_limit_key, j.claim_id, j.worker
    FROM pgjobs_job AS j
    WHERE j.id = %(id)s::bigint
),
priorities AS (
    (
        SELECT j.priority
        FROM wanted,
        LATERAL (
            SELECT j.priority
            FROM pgjobs_job AS j
            WHERE j.queue = wanted.queue
              AND j.priority >= wanted.priority
              AND j.finished_at IS NULL
              AND j.hold IS NULL
            ORDER BY j.priority
            LIMIT 1
        ) AS j
        WHERE wanted.state = 'ready' AND wanted.run_at <= statement_timestamp()
    )
    UNION ALL
    SELECT following.priority
    FROM priorities, wanted,
    LATERAL (
        SELECT j.priority
        FROM pgjobs_job AS j
        WHERE j.queue = wanted.queue
          AND j.priority > priorities.priority
          AND j.finished_at IS NULL
          AND j.hold IS NULL
        ORDER BY j.priority
        LIMIT 1
    ) AS following
),
ahead AS (
    SELECT count(*) AS jobs
    FROM (
        SELECT before.id
        FROM priorities, wanted,
        LATERAL (
            SELECT j.id
            FROM pgjobs_job AS j
            WHERE j.queue = wanted.queue
              AND j.priority = priorities.priority
              AND (j.run_at, j.id) < (
                  CASE WHEN priorities.priority > wanted.priority THEN statement_timestamp() ELSE wanted.run_at END,
                  CASE WHEN priorities.priority > wanted.priority THEN 9223372036854775807 ELSE wanted.id END
              )
              AND j.finished_at IS NULL
              AND j.hold IS NULL
              AND j.claim_id IS NULL
            ORDER BY j.run_at, j.id
            LIMIT %(most)s::integer
        ) AS before
        LIMIT %(most)s::integer
    ) AS counted
)
SELECT
    statement_timestamp(), wanted.id, wanted.state, wanted.name, wanted.queue, wanted.run_at, wanted.attempt, wanted.max_attempts,
    wanted.error, wanted.hold_reason, wanted.ending, wanted.ending_attempt, wanted.claimed_at, wanted.deadline_at,
    wanted.finished_at, wanted.duration_seconds, wanted.cancel_requested_at, wanted.cancel_mode, wanted.cancel_by,
    wanted.cancel_reason, wanted.release_requested_at, wanted.limit_key, lease.expires_at, beat.name, beat.state,
    beat.last_beat_at, pause.kind, pause.paused_at, pause.paused_by, pause.reason, pause.until, workers.live, workers.serving,
    workers.draining, workers.places, workers.held, workers.last_beat_at, ahead.jobs, blockers.ids, holder.id, result.job_id
FROM wanted
CROSS JOIN ahead
LEFT JOIN LATERAL (
    SELECT k.lease_expires_at AS expires_at, k.worker
    FROM pgjobs_claim AS k
    WHERE k.claim_id = wanted.claim_id AND wanted.id = ANY (k.job_ids)
    LIMIT 1
) AS lease ON true
LEFT JOIN pgjobs_heartbeat AS beat ON beat.id = coalesce(lease.worker, wanted.worker)
LEFT JOIN LATERAL (
    SELECT q.kind, q.paused_at, left(q.paused_by, 200) AS paused_by, left(q.reason, 500) AS reason, q.until
    FROM pgjobs_queue_state AS q
    WHERE ((q.kind = 'queue' AND q.name = wanted.queue) OR (q.kind = 'job' AND q.name = wanted.name))
      AND (q.until IS NULL OR q.until > statement_timestamp())
    ORDER BY q.kind DESC
    LIMIT 1
) AS pause ON true
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE seen.live) AS live,
        count(*) FILTER (WHERE seen.live AND seen.serves AND seen.state = 'running') AS serving,
        count(*) FILTER (WHERE seen.live AND seen.serves AND seen.state = 'draining') AS draining,
        coalesce(sum(seen.places) FILTER (WHERE seen.live AND seen.serves AND seen.state = 'running'), 0)::bigint AS places,
        coalesce(sum(seen.running) FILTER (WHERE seen.live AND seen.serves AND seen.state = 'running'), 0)::bigint AS held,
        max(seen.last_beat_at) AS last_beat_at
    FROM (
        SELECT
            h.state, h.running, h.last_beat_at, h.processes::bigint * h.threads AS places,
            h.state <> 'stopped'
            AND h.last_beat_at > statement_timestamp() - make_interval(secs => %(stale)s::float8) AS live,
            (h.queues IS NULL OR h.queues = 'null' OR h.queues ? wanted.queue)
            AND NOT coalesce(h.excluded_queues ? wanted.queue, false) AS serves
        FROM pgjobs_heartbeat AS h
    ) AS seen
) AS workers
LEFT JOIN LATERAL (
    SELECT array_agg(admitted.id) AS ids
    FROM (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.name = wanted.name
          AND j.limit_key = wanted.whole_limit_key
          AND j.hold IS NULL
          AND j.finished_at IS NULL
          AND (j.ending IS NULL OR j.claim_id IS NOT NULL)
        LIMIT 5
    ) AS admitted
    WHERE wanted.state = 'limited'
) AS blockers ON true
LEFT JOIN LATERAL (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.queue = wanted.queue
      AND j.unique_key = wanted.unique_key
      AND j.finished_at IS NULL
      AND wanted.finished_at IS NOT NULL
    LIMIT 1
) AS holder ON true
LEFT JOIN LATERAL (
    SELECT s.job_id
    FROM pgjobs_stored_result AS s
    WHERE s.name = wanted.name AND s.key = wanted.idempotency_key AND s.job_id <> wanted.id AND wanted.state = 'succeeded'
) AS result ON true
