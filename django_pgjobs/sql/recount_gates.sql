-- recount_gates: correct gates whose figures differ from the rows they count; a deleted job counts as cancelled, unless it is a member that had ended.
-- Fence: none (gates that have not opened, which the caller has locked in this transaction).
-- Rows: one per gate corrected: the id of its job, what was pending, what is.
-- Clock: none.
WITH wanted AS MATERIALIZED (
    SELECT g.job_id, g.total, g.hands, g.eager, g.pending, g.succeeded, g.abandoned, g.cancelled, g.unmet
    FROM unnest(%(ids)s::bigint[]) AS w (job_id)
    CROSS JOIN LATERAL (
        SELECT gate.job_id, gate.total, gate.hands, gate.eager, gate.pending, gate.succeeded, gate.abandoned, gate.cancelled, gate.unmet
        FROM pgjobs_gate AS gate
        WHERE gate.job_id = w.job_id AND gate.opened_at IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS g
),
counted AS MATERIALIZED (
    SELECT
        wanted.job_id, wanted.hands + inputs.pending AS pending, greatest(wanted.total, inputs.n) AS total,
        -- Ended jobs that are missing have been pruned: they are in the figures already.
        CASE WHEN inputs.n >= wanted.total THEN inputs.succeeded ELSE greatest(inputs.succeeded, wanted.succeeded) END AS succeeded,
        CASE WHEN inputs.n >= wanted.total THEN inputs.abandoned ELSE greatest(inputs.abandoned, wanted.abandoned) END AS abandoned,
        CASE WHEN inputs.n >= wanted.total THEN inputs.cancelled ELSE greatest(inputs.cancelled, wanted.cancelled) END AS cancelled,
        CASE WHEN inputs.n >= wanted.total THEN inputs.unmet ELSE greatest(inputs.unmet, wanted.unmet) END AS unmet,
        inputs.pending AS unfinished
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS n,
            count(*) FILTER (WHERE each.outcome IS NULL) AS pending,
            count(*) FILTER (WHERE each.outcome = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE each.outcome = 'abandoned') AS abandoned,
            count(*) FILTER (WHERE each.outcome = 'cancelled') AS cancelled,
            count(*) FILTER (WHERE each.outcome IS NOT NULL AND NOT each.met) AS unmet
        FROM (
            (
                SELECT
                    j.outcome,
                    j.outcome = 'succeeded' OR (j.outcome = 'cancelled' AND j.cancel_by = 'pgjobs:not_needed') AS met
                FROM pgjobs_job AS j
                WHERE j.parent_id = wanted.job_id AND j.parent_id IS NOT NULL AND NOT wanted.eager
                OFFSET 0
            )
            UNION ALL
            SELECT
                needed.outcome,
                CASE l.rule
                    WHEN 'settled' THEN true
                    WHEN 'failed' THEN needed.outcome <> 'succeeded'
                    ELSE needed.outcome = 'succeeded'
                END
            FROM (SELECT k.parent_id, k.rule FROM pgjobs_link AS k WHERE k.job_id = wanted.job_id OFFSET 0) AS l
            CROSS JOIN LATERAL (
                SELECT CASE WHEN count(*) = 0 THEN 'cancelled' ELSE max(n.outcome) END AS outcome
                FROM pgjobs_job AS n
                WHERE n.id = ANY (ARRAY[l.parent_id])
            ) AS needed
        ) AS each
    ) AS inputs
),
found AS MATERIALIZED (
    SELECT
        counted.job_id, counted.pending, counted.total, counted.succeeded, counted.abandoned,
        counted.cancelled + lost.n AS cancelled, counted.unmet + lost.n AS unmet
    FROM counted
    CROSS JOIN LATERAL (
        SELECT greatest(
            counted.total - counted.unfinished - counted.succeeded - counted.abandoned - counted.cancelled, 0
        ) AS n
    ) AS lost
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
