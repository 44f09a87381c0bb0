-- read_result: how these jobs went so far: the job, its attempts that did not succeed, and who runs it now.
-- Fence: none (reads).
-- Rows: one per job that exists, in no order; the attempts are parallel arrays, the oldest first, null if there are none. They are the latest, with the start of the first one that was charged.
-- Clock: none.
SELECT
    j.id, j.name, j.queue, j.priority,
    coalesce(j.outcome, CASE WHEN j.claim_id IS NOT NULL THEN 'running' END, j.hold, 'ready') AS state,
    j.outcome, j.ending, j.ending_attempt, j.hold, j.claim_id, j.attempt, j.max_attempts, j.run_at, j.created_at,
    j.claimed_at, j.finished_at, j.duration_seconds, j.payload::text, j.headers::text, j.result::text, j.error,
    j.error_class, j.cancel_requested_at, j.cancel_by, j.cancel_reason, j.worker, lease.worker AS claimed_by,
    history.first_started_at, history.numbers, history.causes, history.workers, history.starts, history.ends,
    history.exceptions, history.messages, history.chains, history.tracebacks
FROM unnest(%(ids)s::bigint[]) AS wanted (id)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[wanted.id])
LEFT JOIN LATERAL (
    SELECT k.worker
    FROM pgjobs_claim AS k
    WHERE k.claim_id = j.claim_id AND j.outcome IS NULL AND j.id = ANY (k.job_ids)
    LIMIT 1
) AS lease ON true
LEFT JOIN LATERAL (
    SELECT
        min(a.first_started_at) AS first_started_at,
        array_agg(a.number ORDER BY a.id) AS numbers,
        array_agg(a.cause ORDER BY a.id) AS causes,
        array_agg(a.worker ORDER BY a.id) AS workers,
        array_agg(a.started_at ORDER BY a.id) AS starts,
        array_agg(a.ended_at ORDER BY a.id) AS ends,
        array_agg(a.exception ORDER BY a.id) AS exceptions,
        array_agg(a.message ORDER BY a.id) AS messages,
        array_agg(a.chain::text ORDER BY a.id) AS chains,
        array_agg(a.traceback ORDER BY a.id) AS tracebacks
    FROM (
        SELECT
            one.id, one.number, one.cause, one.worker, one.started_at, one.ended_at, one.exception, one.message,
            one.chain, one.traceback,
            min(one.started_at) FILTER (WHERE one.number > 0 AND one.cause <> 'released') OVER () AS first_started_at
        FROM (
            SELECT
                kept.id, kept.number, kept.cause, kept.worker, kept.started_at, kept.ended_at, kept.exception,
                kept.message, kept.chain, kept.traceback
            FROM pgjobs_attempt AS kept
            WHERE kept.job_id = j.id
            -- Else the planner may walk the newest attempts of all jobs until it finds those of this one.
            OFFSET 0
        ) AS one
        ORDER BY one.id DESC
        LIMIT %(most)s::integer
    ) AS a
) AS history ON true
