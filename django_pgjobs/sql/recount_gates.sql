-- recount_gates: correct gates whose figures differ from the rows they count; a job that somebody has deleted counts as cancelled.
-- Fence: none (gates that have not opened, which the caller has locked in this transaction).
-- Rows: one per gate corrected: the id of its job, what was pending, what is.
-- Clock: none.
WITH wanted AS MATERIALIZED (
    SELECT g.job_id, g.total, g.hands, g.eager, g.pending, g.succeeded, g.abandoned, g.cancelled, g.unmet
    FROM unnest(%(ids)s::bigint[]) AS w (job_id)
    JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[w.job_id])
    WHERE g.opened_at IS NULL
    FOR NO KEY UPDATE OF g SKIP LOCKED
),
inputs AS MATERIALIZED (
    SELECT
        wanted.job_id, j.outcome,
        j.outcome = 'succeeded' OR (j.outcome = 'cancelled' AND j.cancel_by = 'pgjobs:not_needed') AS met
    FROM wanted
    JOIN pgjobs_job AS j ON j.parent_id = ANY (ARRAY[wanted.job_id]) AND j.parent_id IS NOT NULL
    WHERE NOT wanted.eager AND j.flow & 1 = 1
    UNION ALL
    SELECT
        wanted.job_id, needed.outcome,
        CASE l.rule
            WHEN 'settled' THEN true
            WHEN 'failed' THEN needed.outcome <> 'succeeded'
            ELSE needed.outcome = 'succeeded'
        END
    FROM wanted
    JOIN pgjobs_link AS l ON l.job_id = ANY (ARRAY[wanted.job_id])
    CROSS JOIN LATERAL (
        SELECT CASE WHEN count(*) = 0 THEN 'cancelled' ELSE max(n.outcome) END AS outcome
        FROM pgjobs_job AS n
        WHERE n.id = ANY (ARRAY[l.parent_id])
    ) AS needed
),
found AS MATERIALIZED (
    SELECT
        wanted.job_id,
        greatest(wanted.total, count(inputs.job_id)) AS total,
        wanted.hands + count(inputs.job_id) FILTER (WHERE inputs.outcome IS NULL) AS pending,
        count(*) FILTER (WHERE inputs.outcome = 'succeeded') AS succeeded,
        count(*) FILTER (WHERE inputs.outcome = 'abandoned') AS abandoned,
        count(*) FILTER (WHERE inputs.outcome = 'cancelled') + greatest(wanted.total - count(inputs.job_id), 0) AS cancelled,
        count(*) FILTER (WHERE NOT inputs.met) + greatest(wanted.total - count(inputs.job_id), 0) AS unmet
    FROM wanted
    LEFT JOIN inputs ON inputs.job_id = ANY (ARRAY[wanted.job_id])
    GROUP BY wanted.job_id, wanted.total, wanted.hands
)
UPDATE pgjobs_gate AS g
SET pending = found.pending,
    total = found.total,
    succeeded = found.succeeded,
    abandoned = found.abandoned,
    cancelled = found.cancelled,
    unmet = found.unmet
FROM found
JOIN wanted ON wanted.job_id = ANY (ARRAY[found.job_id])
WHERE g.job_id = ANY (ARRAY[found.job_id])
  AND (found.pending, found.total, found.succeeded, found.abandoned, found.cancelled, found.unmet)
      IS DISTINCT FROM (wanted.pending, wanted.total, wanted.succeeded, wanted.abandoned, wanted.cancelled, wanted.unmet)
RETURNING g.job_id, wanted.pending, found.pending
