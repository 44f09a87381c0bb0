-- rescue_jobs: rescue jobs whose lease has expired, and those that their own worker could not stop at their deadline; nothing else makes a claim void.
-- Fence: required.
-- Rows: one per job rescued, with its new state; locked rows are skipped until the next check.
-- Clock: statement_timestamp().
WITH known AS MATERIALIZED (
    -- Sent before a network outage, this statement may arrive after it, and before the renewals of live workers.
    SELECT coalesce(%(seen)s::timestamptz, statement_timestamp()) AS until
),
due AS MATERIALIZED (
    SELECT claim_id, part, worker, claim_id <> ALL (%(given_up)s::uuid[]) AS expired, job_ids
    FROM pgjobs_claim
    WHERE check_at <= (SELECT until FROM known)
      AND (
          lease_expires_at <= (SELECT until FROM known) -- no worker takes a job from another whose lease runs
          AND claim_id <> ALL (%(held)s::uuid[]) -- own
          OR claim_id = ANY (%(given_up)s::uuid[])
      )
      -- After an outage every lease has expired; live workers renew first.
      AND pg_postmaster_start_time() <= statement_timestamp() - make_interval(secs => %(quiet)s::float8)
    ORDER BY check_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT
        j.id, due.claim_id, due.part, due.worker, due.expired,
        j.overdue_at + make_interval(secs => %(grace)s::float8) AS give_up_at
    FROM due
    CROSS JOIN LATERAL unnest(due.job_ids) AS member (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[member.id])
    WHERE j.claim_id = due.claim_id AND j.outcome IS NULL
),
dead AS MATERIALIZED (
    SELECT
        j.id, locked.claim_id, locked.part, locked.worker, locked.expired,
        CASE
            WHEN j.ending IS NOT NULL THEN NULL
            WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN j.attempt >= j.max_attempts OR j.options ->> 'on_crash' = 'abandon' THEN 'abandoned'
        END AS ends,
        j.attempt < j.max_attempts AS left_over,
        j.flow & 7 <> 0 AS counted, -- its end counts in a gate: a worker writes it
        j.name = ANY (%(without_on_cancel)s::text[]) AS without_on_cancel,
        j.name = ANY (%(without_on_abandon)s::text[]) AS without_on_abandon
    FROM locked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[locked.id])
    WHERE (
          locked.expired
          OR j.id = ANY (%(overdue)s::bigint[])
          -- Read the deadline under the lock: the job may have reached its callback, which has a deadline of its own.
          AND j.overdue_at + make_interval(secs => %(grace)s::float8) <= (SELECT until FROM known)
      )
      AND j.claim_id = locked.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT
        dead.*,
        CASE
            WHEN dead.counted THEN NULL
            WHEN dead.ends = 'cancelled' AND dead.without_on_cancel THEN 'cancelled'
            WHEN dead.ends = 'abandoned' AND dead.without_on_abandon THEN 'abandoned'
        END AS outcome,
        CASE
            WHEN NOT dead.expired THEN 'The attempt ran past its deadline and its worker did not stop it.'
            WHEN h.id IS NULL THEN 'The lease ran out; the worker is not known.'
            WHEN h.state = 'stopped' THEN 'The lease ran out; worker ' || h.name || ' has stopped.'
            WHEN h.last_beat_at < statement_timestamp() - make_interval(secs => %(stale)s::float8)
            THEN 'The lease ran out; worker ' || h.name || ' was last heard from at ' || date_trunc('second', h.last_beat_at)::text || '.'
            ELSE 'The lease ran out; worker ' || h.name || ' did not renew it.'
        END
        || CASE WHEN dead.ends = 'abandoned' AND dead.left_over THEN ' It is not run again: on_crash="abandon".' ELSE '' END AS message,
        h.name AS worker_name, h.release
    FROM dead
    LEFT JOIN pgjobs_heartbeat AS h ON h.id = dead.worker
),
rescued AS (
    UPDATE pgjobs_job AS j
    SET claim_id = CASE WHEN judged.outcome IS NOT NULL THEN j.claim_id END,
        hold = CASE
            WHEN j.limit_key IS NOT NULL AND judged.outcome IS NULL AND j.ending IS NULL AND judged.ends IS NULL THEN 'limited'
        END,
        outcome = judged.outcome,
        finished_at = CASE WHEN judged.outcome IS NOT NULL THEN statement_timestamp() END,
        ending = CASE WHEN judged.outcome IS NULL THEN coalesce(j.ending, judged.ends) ELSE j.ending END,
        error = CASE WHEN j.ending IS NULL THEN judged.message ELSE j.error END,
        error_class = CASE
            WHEN j.ending IS NOT NULL THEN j.error_class
            WHEN judged.ends = 'abandoned' THEN CASE WHEN judged.expired THEN 'lost' ELSE 'timeout' END
        END,
        overdue_at = NULL,
        progress = NULL,
        expires_at = NULL, -- it has started
        ready_at = statement_timestamp(),
        release_requested_at = NULL
    FROM judged
    WHERE j.id = ANY (ARRAY[judged.id])
    RETURNING
        j.id, j.name, j.queue, j.priority, j.attempt, j.claimed_at, j.waited, j.outcome, j.ending,
        judged.claim_id, judged.expired, judged.worker, judged.worker_name, judged.release, judged.message,
        coalesce(judged.ends = 'abandoned', false) AS given_up
),
history AS (
    INSERT INTO pgjobs_attempt (
        job_id, claim_id, number, cause, worker, worker_name, release, started_at, ended_at, duration_seconds, exception,
        message
    )
    SELECT
        id, claim_id, attempt, CASE WHEN expired THEN 'lost' ELSE 'timeout' END, worker, coalesce(worker_name, ''),
        coalesce(release, ''), claimed_at, statement_timestamp(), extract(epoch FROM statement_timestamp() - claimed_at), '', message
    FROM rescued
    ON CONFLICT DO NOTHING
),
checked AS MATERIALIZED (
    SELECT claim_id, part, count(*) AS jobs, min(give_up_at) AS give_up_at FROM locked GROUP BY claim_id, part
),
taken AS MATERIALIZED (
    SELECT claim_id, part, count(*) AS jobs FROM dead GROUP BY claim_id, part
),
counted AS MATERIALIZED (
    SELECT due.claim_id, due.part, coalesce(checked.jobs, 0) > coalesce(taken.jobs, 0) AS live, checked.give_up_at
    FROM due
    LEFT JOIN checked ON checked.claim_id = due.claim_id AND checked.part = due.part
    LEFT JOIN taken ON taken.claim_id = due.claim_id AND taken.part = due.part
),
kept AS (
    UPDATE pgjobs_claim AS k
    SET check_at = greatest(
        least(k.lease_expires_at, counted.give_up_at),
        statement_timestamp() + interval '1 second'
    )
    FROM counted
    WHERE k.claim_id = counted.claim_id AND k.part = counted.part AND counted.live
),
dropped AS (
    DELETE FROM pgjobs_claim AS k
    USING counted
    WHERE k.claim_id = counted.claim_id AND k.part = counted.part AND NOT counted.live
)
SELECT
    id, name, queue, priority, attempt, claim_id, message, coalesce(outcome, '') AS outcome,
    coalesce(ending, '') AS ending, CASE WHEN expired THEN 'lost' ELSE 'timeout' END AS cause, given_up,
    CASE WHEN waited AND outcome IS NOT NULL THEN pg_notify('pgjobs_ended', id::text) END
FROM rescued
