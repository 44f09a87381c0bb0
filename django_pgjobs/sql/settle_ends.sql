-- settle_ends: count the ends that this transaction has just written, and successes of members by their batch, in the gates that they feed, and unblock jobs whose gates open. The first abandoned member of a batch that fails fast closes it, and the others are to be cancelled. A failed job that can be undone is to be undone.
-- Fence: none (counts what the caller's fenced statement has ended in the same transaction, and nothing twice).
-- Rows: one per job unblocked: the workers to wake (no priority: admitters), and whether only a scan behind the frontier finds it; and one per job for which the caller has to register a job of ours, in this transaction: its name, and why. A gate locked for longer than asked raises.
-- Clock: statement_timestamp().
WITH ended AS MATERIALIZED (
    SELECT
        j.id, j.parent_id, j.outcome, j.flow, j.queue,
        -- Nothing went wrong: it succeeded, or it is not needed.
        j.outcome = 'succeeded' OR (j.outcome = 'cancelled' AND j.cancel_by = 'pgjobs:not_needed') AS well
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[e.id])
    -- Evaluated once, before the first row.
    WHERE (SELECT set_config('lock_timeout', coalesce(%(lock_timeout)s::text, current_setting('lock_timeout')), true)) IS NOT NULL
      AND j.outcome IS NOT NULL
),
fed AS MATERIALIZED (
    -- One row a gate: 500 ends of one batch are one write.
    SELECT
        job_id,
        sum(jobs) AS n,
        coalesce(sum(jobs) FILTER (WHERE outcome = 'succeeded'), 0) AS succeeded,
        count(*) FILTER (WHERE outcome = 'abandoned') AS abandoned,
        count(*) FILTER (WHERE outcome = 'cancelled') AS cancelled,
        count(*) FILTER (WHERE NOT met) AS unmet,
        bool_and(well) FILTER (WHERE NOT met) AS well,
        min(
            CASE outcome
                WHEN 'succeeded' THEN 'Job ' || id || ' succeeded, so it is not needed.'
                ELSE 'It needs job ' || id || ', which was ' || outcome || '.'
            END
        ) FILTER (WHERE NOT met) AS reason,
        min(id) FILTER (WHERE outcome = 'abandoned') AS culprit
    FROM (
        SELECT parent_id AS job_id, id, outcome, well, well AS met, 1 AS jobs
        FROM ended
        WHERE parent_id IS NOT NULL
        UNION ALL
        SELECT
            l.job_id, ended.id, ended.outcome, ended.well,
            CASE l.rule
                WHEN 'settled' THEN true
                WHEN 'failed' THEN ended.outcome <> 'succeeded'
                ELSE ended.outcome = 'succeeded'
            END,
            1
        FROM ended
        CROSS JOIN LATERAL (
            -- OFFSET keeps it the inner side, regardless of the statistics.
            SELECT k.job_id, k.rule FROM pgjobs_link AS k WHERE k.parent_id = ended.id OFFSET 0
        ) AS l
        WHERE ended.flow & 2 = 2
        UNION ALL
        SELECT gate, NULL, 'succeeded', true, true, jobs
        FROM unnest(%(gates)s::bigint[], %(jobs)s::integer[]) AS members (gate, jobs)
    ) AS ends
    GROUP BY job_id
),
locked AS MATERIALIZED (
    -- In the order of their ids, as all other lockers do; the lock reads the newest row.
    SELECT
        g.job_id, ordered.n, ordered.succeeded, ordered.abandoned, ordered.cancelled, ordered.unmet, ordered.well, g.eager,
        g.unmet + ordered.unmet > 0 AS refused,
        g.opened_at IS NULL AND (g.pending - closing.hands - ordered.n <= 0 OR (g.eager AND g.unmet + ordered.unmet > 0)) AS opens,
        closing.hands, ordered.culprit, closing.fails AND g.pending - closing.hands - ordered.n > 0 AS fails,
        CASE
            WHEN g.eager THEN coalesce(ordered.reason, 'It needs a job that ended otherwise.') -- while its own job was locked
            ELSE (g.unmet + ordered.unmet) || ' of ' || g.total || ' members did not succeed.'
        END AS reason
    FROM (
        SELECT job_id, n, succeeded, abandoned, cancelled, unmet, well, reason, culprit FROM fed ORDER BY job_id
    ) AS ordered
    CROSS JOIN LATERAL (
        SELECT
            gate.job_id, gate.pending, gate.total, gate.unmet, gate.eager, gate.opened_at, gate.hands,
            gate.fail_fast AND gate.opened_at IS NULL AND gate.abandoned = 0 AS watches
        FROM pgjobs_gate AS gate
        WHERE gate.job_id = ordered.job_id
        FOR NO KEY UPDATE
    ) AS g
    CROSS JOIN LATERAL (
        SELECT
            g.watches AND ordered.abandoned > 0 AS fails,
            CASE WHEN g.watches AND ordered.abandoned > 0 THEN g.hands ELSE 0 END AS hands
    ) AS closing
),
free AS MATERIALIZED (
    -- The holder of a gate waits for no job: the gate of a locked job stays due.
    SELECT j.id, locked.eager, locked.refused, locked.well, locked.reason
    FROM locked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[locked.job_id])
    WHERE locked.opens
      AND j.hold IS NOT DISTINCT FROM 'blocked'
      AND j.finished_at IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
counted AS (
    UPDATE pgjobs_gate AS g
    SET pending = g.pending - locked.hands - locked.n,
        hands = g.hands - locked.hands,
        succeeded = g.succeeded + locked.succeeded,
        abandoned = g.abandoned + locked.abandoned,
        cancelled = g.cancelled + locked.cancelled,
        unmet = g.unmet + locked.unmet,
        -- One that is not free may be locked, or newer than this statement knows: who looks later sees.
        due = CASE WHEN locked.opens THEN locked.job_id NOT IN (SELECT id FROM free) ELSE g.due END,
        opened_at = CASE WHEN locked.opens AND locked.job_id IN (SELECT id FROM free) THEN statement_timestamp() ELSE g.opened_at END
    FROM locked
    WHERE g.job_id = ANY (ARRAY[locked.job_id])
),
failing AS (
    SELECT j.id, j.queue, 'Member ' || locked.culprit || ' was abandoned.' AS reason
    FROM locked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[locked.job_id])
    WHERE locked.fails
      AND j.cancel_requested_at IS NULL
),
undoing AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow | 256 -- is being undone
    FROM ended
    WHERE j.id = ANY (ARRAY[ended.id]) AND ended.flow & 4 = 4 AND ended.outcome <> 'succeeded'
    RETURNING j.id, j.queue
),
unblocked AS (
    UPDATE pgjobs_job AS j
    SET run_at = CASE
            -- Its body will not start.
            WHEN free.refused OR NOT free.eager OR j.cancel_requested_at IS NOT NULL THEN least(j.run_at, statement_timestamp())
            ELSE greatest(j.run_at, statement_timestamp())
        END,
        ready_at = statement_timestamp(),
        hold = CASE
            WHEN j.limit_key IS NOT NULL AND free.eager AND NOT free.refused AND j.cancel_requested_at IS NULL THEN 'limited'
        END,
        ending = CASE
            WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN free.refused AND free.eager THEN 'cancelled'
            WHEN free.refused THEN 'abandoned'
            WHEN NOT free.eager THEN 'succeeded' -- its members decide, no attempt of its own
        END,
        cancel_by = CASE
            WHEN NOT (free.refused AND free.eager AND j.cancel_requested_at IS NULL) THEN j.cancel_by
            WHEN free.well THEN 'pgjobs:not_needed'
            ELSE 'pgjobs:flow'
        END,
        cancel_reason = CASE
            WHEN free.refused AND free.eager AND j.cancel_requested_at IS NULL THEN free.reason
            ELSE j.cancel_reason
        END,
        error = CASE WHEN free.refused AND NOT free.eager THEN free.reason ELSE j.error END,
        unique_key = CASE WHEN (free.refused OR NOT free.eager) AND j.key_scope = 'until_started' THEN NULL ELSE j.unique_key END -- its body will not start
    FROM free
    WHERE j.id = ANY (ARRAY[free.id])
    RETURNING j.id, j.queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority, j.run_at
)
SELECT id, queue, priority, run_at < statement_timestamp() - interval '1 second' AS old, NULL AS servant, NULL AS reason
FROM unblocked
UNION ALL
SELECT id, queue, NULL, false AS old, 'pgjobs.cancel_members', reason FROM failing
UNION ALL
SELECT id, queue, NULL, false AS old, 'pgjobs.undo', NULL FROM undoing
