-- open_gates: open gates that nothing keeps closed, and release their jobs; with close, let no more members into batches that are open for some.
-- Fence: none (releases only jobs that wait, checked under the locks of gate and job).
-- Rows: one per job released: the workers to wake (no priority: admitters), and whether it is due.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    -- In the order of their ids, whoever else locks some of them.
    SELECT
        g.job_id, g.eager,
        CASE WHEN %(close)s::boolean THEN g.hands ELSE 0 END AS hands,
        g.unmet > 0 AS refused,
        g.opened_at IS NULL
        AND (g.pending - CASE WHEN %(close)s::boolean THEN g.hands ELSE 0 END <= 0 OR (g.eager AND g.unmet > 0)) AS opens,
        refusal.well,
        CASE
            WHEN g.eager THEN coalesce(refusal.reason, 'A job that it needs has been deleted.')
            ELSE g.unmet || ' of ' || g.total || ' members did not succeed.'
        END AS reason
    FROM unnest(%(ids)s::bigint[]) AS wanted (job_id)
    JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[wanted.job_id])
    LEFT JOIN LATERAL (
        SELECT
            min(
                CASE n.outcome
                    WHEN 'succeeded' THEN 'Job ' || n.id || ' succeeded, so it is not needed.'
                    ELSE 'It needs job ' || n.id || ', which was ' || n.outcome || '.'
                END
            ) AS reason,
            bool_and(n.outcome = 'succeeded' OR (n.outcome = 'cancelled' AND n.cancel_by = 'pgjobs:not_needed')) AS well
        FROM pgjobs_link AS l
        JOIN pgjobs_job AS n ON n.id = ANY (ARRAY[l.parent_id])
        WHERE l.job_id = ANY (ARRAY[g.job_id])
          AND g.eager
          AND CASE l.rule
                  WHEN 'settled' THEN false
                  WHEN 'failed' THEN n.outcome = 'succeeded'
                  ELSE n.outcome <> 'succeeded'
              END
    ) AS refusal ON true
    ORDER BY wanted.job_id
    FOR NO KEY UPDATE OF g
),
free AS MATERIALIZED (
    -- Whoever holds a gate waits for no job: one that is locked stays due.
    SELECT j.id
    FROM locked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[locked.job_id])
    WHERE locked.opens
      AND j.hold IS NOT DISTINCT FROM 'waiting'
      AND j.finished_at IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT j.id
    FROM locked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[locked.job_id])
    WHERE locked.opens
      AND j.hold IS NOT DISTINCT FROM 'waiting'
      AND j.finished_at IS NULL
),
opened AS (
    UPDATE pgjobs_gate AS g
    SET pending = g.pending - locked.hands,
        hands = g.hands - locked.hands,
        due = CASE WHEN locked.opens THEN free.id IS NULL AND waiting.id IS NOT NULL ELSE false END,
        opened_at = CASE WHEN locked.opens AND (free.id IS NOT NULL OR waiting.id IS NULL) THEN statement_timestamp() ELSE g.opened_at END
    FROM locked
    LEFT JOIN free ON free.id = ANY (ARRAY[locked.job_id])
    LEFT JOIN waiting ON waiting.id = ANY (ARRAY[locked.job_id])
    WHERE g.job_id = ANY (ARRAY[locked.job_id])
),
released AS (
    UPDATE pgjobs_job AS j
    SET run_at = greatest(j.run_at, statement_timestamp()),
        ready_at = statement_timestamp(),
        hold = CASE
            WHEN j.limit_key IS NOT NULL AND NOT locked.refused AND j.cancel_requested_at IS NULL THEN 'limited'
        END,
        ending = CASE
            WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN locked.refused AND locked.eager THEN 'cancelled'
            WHEN locked.refused THEN 'abandoned'
        END,
        cancel_by = CASE
            WHEN NOT (locked.refused AND locked.eager AND j.cancel_requested_at IS NULL) THEN j.cancel_by
            WHEN locked.well THEN 'pgjobs:not_needed'
            ELSE 'pgjobs:flow'
        END,
        cancel_reason = CASE
            WHEN locked.refused AND locked.eager AND j.cancel_requested_at IS NULL THEN locked.reason
            ELSE j.cancel_reason
        END,
        error = CASE WHEN locked.refused AND NOT locked.eager THEN locked.reason ELSE j.error END,
        unique_key = CASE WHEN locked.refused AND j.key_scope = 'until_started' THEN NULL ELSE j.unique_key END -- its body will not start
    FROM free
    JOIN locked ON locked.job_id = ANY (ARRAY[free.id])
    WHERE j.id = ANY (ARRAY[free.id])
    RETURNING j.id, j.queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority, j.run_at
)
SELECT id, queue, priority, run_at < statement_timestamp() - interval '1 second' AS old FROM released
