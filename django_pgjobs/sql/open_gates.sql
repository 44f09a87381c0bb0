-- open_gates: open gates that nothing keeps closed, and unblock their jobs; with close, close batches for new members; with force, open all other gates too, and refuse no job that needs others. A gate whose job has ended opens only if an earlier statement of the transaction has locked it.
-- Fence: none (unblocks only blocked jobs, checked under the locks of gate and job).
-- Rows: one per job unblocked: the workers to wake (no priority: admitters), and whether only a scan behind the frontier finds it.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    -- In the order of their ids, as all other lockers do; the lock reads the newest row.
    SELECT
        g.job_id, g.eager,
        CASE WHEN %(close)s::boolean THEN g.hands ELSE 0 END AS hands,
        g.unmet > 0 AND NOT (g.eager AND %(force)s::boolean) AS refused,
        g.opened_at IS NULL
        AND (
            %(force)s::boolean
            OR g.pending - CASE WHEN %(close)s::boolean THEN g.hands ELSE 0 END <= 0
            OR (g.eager AND g.unmet > 0)
        ) AS opens,
        refusal.well,
        CASE
            WHEN g.eager THEN coalesce(refusal.reason, 'A job that it needs has been deleted.')
            ELSE g.unmet || ' of ' || g.total || ' members did not succeed.'
        END AS reason
    FROM (SELECT w.job_id FROM unnest(%(ids)s::bigint[]) AS w (job_id) ORDER BY w.job_id) AS ordered
    CROSS JOIN LATERAL (
        SELECT gate.job_id, gate.pending, gate.total, gate.unmet, gate.eager, gate.hands, gate.opened_at
        FROM pgjobs_gate AS gate
        WHERE gate.job_id = ordered.job_id
        FOR NO KEY UPDATE
    ) AS g
    CROSS JOIN LATERAL (
        SELECT
            min(
                CASE n.outcome
                    WHEN 'succeeded' THEN 'Job ' || n.id || ' succeeded, so it is not needed.'
                    ELSE 'It needs job ' || n.id || ', which was ' || n.outcome || '.'
                END
            ) AS reason,
            bool_and(n.outcome = 'succeeded' OR (n.outcome = 'cancelled' AND n.cancel_by = 'pgjobs:not_needed')) AS well
        FROM (
            SELECT k.parent_id, k.rule FROM pgjobs_link AS k WHERE k.job_id = g.job_id AND g.eager AND g.unmet > 0 OFFSET 0
        ) AS l
        JOIN pgjobs_job AS n ON n.id = ANY (ARRAY[l.parent_id])
        WHERE CASE l.rule
                  WHEN 'settled' THEN false
                  WHEN 'failed' THEN n.outcome = 'succeeded'
                  ELSE n.outcome <> 'succeeded'
              END
    ) AS refusal
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
busy AS MATERIALIZED (
    SELECT j.id
    FROM locked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[locked.job_id])
    WHERE locked.opens
      AND j.hold IS NOT DISTINCT FROM 'blocked'
      AND j.finished_at IS NULL
      AND j.id NOT IN (SELECT id FROM free)
),
opened AS (
    UPDATE pgjobs_gate AS g
    SET pending = g.pending - locked.hands,
        hands = g.hands - locked.hands,
        -- One that is not free may be locked, or newer than this statement knows, unless the gates were locked before it.
        due = CASE
            WHEN NOT locked.opens OR locked.job_id IN (SELECT id FROM free) THEN false
            ELSE NOT %(locked)s::boolean OR locked.job_id IN (SELECT id FROM busy)
        END,
        opened_at = CASE
            WHEN NOT locked.opens THEN g.opened_at
            WHEN locked.job_id IN (SELECT id FROM free) THEN statement_timestamp()
            WHEN %(locked)s::boolean AND locked.job_id NOT IN (SELECT id FROM busy) THEN statement_timestamp()
        END
    FROM locked
    WHERE g.job_id = ANY (ARRAY[locked.job_id])
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
SELECT id, queue, priority, run_at < statement_timestamp() - interval '1 second' AS old FROM unblocked
