-- read_why: all facts that explain why one job does not run, or what happens to it, at one instant.
-- Fence: none (reads).
-- Rows: 1; 0 = there is no such job.
-- Clock: statement_timestamp().
WITH RECURSIVE known AS MATERIALIZED (
    SELECT
        h.id, h.name, h.queues, h.excluded_queues, h.running, h.processes::bigint * h.threads AS slots, h.last_beat_at,
        h.processes, h.suspects, h.places, CASE WHEN h.suspects IS NOT NULL THEN h.suspects_since END AS suspects_since,
        CASE
            WHEN h.state IN ('stopped', 'lost') THEN h.state
            WHEN h.last_beat_at <= statement_timestamp() - make_interval(secs => %(stale)s::float8) THEN 'lost'
            WHEN h.last_beat_at <= statement_timestamp() - make_interval(secs => %(silent)s::float8) THEN 'silent'
            ELSE h.state
        END AS status
    FROM pgjobs_heartbeat AS h
),
pauses AS MATERIALIZED (
    SELECT q.kind, q.name, q.paused_at, left(q.paused_by, 200) AS paused_by, left(q.reason, 500) AS reason, q.until
    FROM pgjobs_queue_state AS q
    WHERE q.until IS NULL OR q.until > statement_timestamp()
),
wanted AS MATERIALIZED (
    SELECT
        j.id, coalesce(j.outcome, CASE WHEN j.claim_id IS NOT NULL THEN 'running' END, j.hold, 'ready') AS state, j.name, j.queue, j.priority, j.run_at, j.attempt, j.max_attempts, left(j.error, 500) AS error,
        left(j.hold_reason, 500) AS hold_reason, j.ending, j.ending_attempt, j.claimed_at, j.overdue_at, j.finished_at,
        j.duration_seconds, j.cancel_requested_at, j.cancel_mode, left(j.cancel_by, 200) AS cancel_by,
        left(j.cancel_reason, 500) AS cancel_reason, j.release_requested_at, j.idempotency_key,
        CASE WHEN j.outcome IS NOT NULL AND j.key_scope = 'until_finished' THEN j.key ELSE j.unique_key END AS unique_key,
        left(j.limit_key, 200) AS limit_key, j.claim_id, j.worker, j.expires_at,
        j.parent_id AS batch_id,
        greatest(
            j.run_at, j.created_at, j.ready_at,
            (
                SELECT over.until
                FROM pgjobs_queue_state AS over
                WHERE over.kind = 'queue' AND over.name = j.queue AND over.until <= statement_timestamp()
            )
        ) AS ready_since
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
            SELECT ordered.id
            FROM (
                SELECT j.id, j.claim_id
                FROM pgjobs_job AS j
                WHERE j.queue = wanted.queue
                  AND j.priority = priorities.priority
                  AND (j.run_at, j.id) < (
                      CASE WHEN priorities.priority > wanted.priority THEN statement_timestamp() ELSE wanted.run_at END,
                      CASE WHEN priorities.priority > wanted.priority THEN 9223372036854775807 ELSE wanted.id END
                  )
                  AND j.finished_at IS NULL
                  AND j.hold IS NULL
                ORDER BY j.run_at, j.id
                LIMIT 2 * %(most)s::integer
            ) AS ordered
            -- Outside the ordered query: if the statistics say that all jobs run, sorting the whole queue seems cheaper than its index.
            WHERE ordered.claim_id IS NULL
            LIMIT %(most)s::integer
        ) AS before
        LIMIT %(most)s::integer
    ) AS counted
)
SELECT
    statement_timestamp(), wanted.id, wanted.state, wanted.name, wanted.queue, wanted.run_at, wanted.ready_since, wanted.attempt,
    wanted.max_attempts, wanted.error, wanted.hold_reason, wanted.ending, wanted.ending_attempt, wanted.claimed_at,
    wanted.overdue_at, wanted.finished_at, wanted.duration_seconds, wanted.cancel_requested_at, wanted.cancel_mode,
    wanted.cancel_by, wanted.cancel_reason, wanted.release_requested_at, wanted.limit_key, wanted.expires_at, lease.expires_at, beat.name,
    beat.status, beat.last_beat_at, beat.suspects_since,
    CASE
        WHEN beat.suspects -> 'pending' @> to_jsonb(wanted.id) THEN 'pending'
        WHEN beat.suspects -> 'running' @> to_jsonb(wanted.id) THEN 'running'
    END,
    workers.benched, workers.benched_since, workers.crowded, workers.places, workers.live, workers.serving, workers.quiet, workers.draining, workers.slots, workers.running,
    workers.served_beat_at, workers.last_beat_at, ahead.jobs, holder.id, result.job_id, undo.id,
    of_queue.kind, of_queue.paused_at, of_queue.paused_by, of_queue.reason, of_queue.until,
    of_name.kind, of_name.paused_at, of_name.paused_by, of_name.reason, of_name.until
FROM wanted
CROSS JOIN ahead
LEFT JOIN LATERAL (
    SELECT k.lease_expires_at AS expires_at, k.worker
    FROM pgjobs_claim AS k
    WHERE k.claim_id = wanted.claim_id AND wanted.id = ANY (k.job_ids)
    LIMIT 1
) AS lease ON true
LEFT JOIN known AS beat ON beat.id = coalesce(lease.worker, wanted.worker)
LEFT JOIN pauses AS of_queue ON of_queue.kind = 'queue' AND of_queue.name = wanted.queue
LEFT JOIN pauses AS of_name ON of_name.kind = 'job' AND of_name.name = wanted.name
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE seen.live) AS live,
        -- Their only executor takes nothing else.
        count(*) FILTER (WHERE seen.serves AND seen.status = 'running' AND seen.processes = 1 AND seen.suspects_since IS NOT NULL) AS benched,
        min(seen.suspects_since) FILTER (WHERE seen.serves AND seen.status = 'running' AND seen.processes = 1) AS benched_since,
        count(*) FILTER (WHERE seen.serves AND seen.status = 'running' AND seen.taken >= seen.places) AS crowded,
        coalesce(sum(seen.places) FILTER (WHERE seen.serves AND seen.status = 'running'), 0)::bigint AS places,
        count(*) FILTER (WHERE seen.serves AND seen.status = 'running') AS serving,
        count(*) FILTER (WHERE seen.serves AND seen.status = 'quiet') AS quiet,
        count(*) FILTER (WHERE seen.serves AND seen.status = 'draining') AS draining,
        coalesce(sum(seen.slots) FILTER (WHERE seen.serves AND seen.status = 'running'), 0)::bigint AS slots,
        coalesce(sum(seen.running) FILTER (WHERE seen.serves AND seen.status = 'running'), 0)::bigint AS running,
        max(seen.last_beat_at) FILTER (WHERE seen.serves AND seen.live) AS served_beat_at,
        max(seen.last_beat_at) AS last_beat_at
    FROM (
        SELECT
            known.status, known.running, known.last_beat_at, known.processes, known.suspects_since, known.slots, known.status IN ('running', 'quiet', 'draining') AS live,
            wanted.queue = 'pgjobs'
            OR (known.queues IS NULL OR known.queues = 'null' OR known.queues ? wanted.queue)
            AND NOT coalesce(known.excluded_queues ? wanted.queue, false) AS serves,
            given.places,
            CASE
                WHEN given.places IS NOT NULL AND known.status = 'running' AND wanted.state = 'ready'
                THEN (
                    SELECT count(*)
                    FROM pgjobs_claim AS k
                    CROSS JOIN LATERAL unnest(k.job_ids) AS claimed (id)
                    JOIN pgjobs_job AS j ON j.id = claimed.id AND j.claim_id = k.claim_id
                    WHERE k.worker = known.id
                      AND j.outcome IS NULL
                      AND (j.queue = wanted.queue OR NOT (known.places ? wanted.queue OR known.places ? j.queue OR j.queue = 'pgjobs'))
                )
            END AS taken
        FROM known
        CROSS JOIN LATERAL (
            SELECT CASE WHEN jsonb_typeof(stored) = 'number' AND wanted.queue <> 'pgjobs' THEN least(stored::numeric, 1000000) END AS places
            FROM coalesce(known.places -> wanted.queue, known.places -> '*') AS stored
        ) AS given
    ) AS seen
) AS workers
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
LEFT JOIN LATERAL (
    SELECT u.id
    FROM pgjobs_job AS u
    WHERE u.target_id = ANY (ARRAY[wanted.id, wanted.batch_id])
      AND u.target_id IS NOT NULL
      AND u.name = 'pgjobs.undo'
      AND (
          u.outcome IS DISTINCT FROM 'cancelled'
          OR (SELECT t.flow & 64 = 64 FROM pgjobs_job AS t WHERE t.id = ANY (ARRAY[u.target_id])) -- it had begun
      )
      AND wanted.state IN ('abandoned', 'cancelled')
    LIMIT 1
) AS undo ON true
