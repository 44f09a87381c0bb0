-- list_locked_gates: the gates that another transaction has locked, of those in which the ends of some jobs count and of those whose turn these pass on, and in place of a gate the locked sequences of the jobs; waits for none.
-- Fence: none (reads; roll back the locks that it takes).
-- Rows: one per job whose end has to wait, and locked gate: their ids; for a sequence a negative number.
-- Clock: none.
WITH ended AS MATERIALIZED (
    SELECT j.id, j.parent_id, j.flow, j.sequence, hashtext(j.sequence) & 1023 AS bucket
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[e.id])
),
fed AS MATERIALIZED (
    SELECT id, parent_id AS job_id
    FROM ended
    WHERE parent_id IS NOT NULL
    UNION ALL
    SELECT ended.id, l.job_id
    FROM ended
    CROSS JOIN LATERAL (SELECT k.job_id FROM pgjobs_link AS k WHERE k.parent_id = ended.id OFFSET 0) AS l
    WHERE ended.flow & 2 = 2
    UNION ALL
    SELECT ended.id, head.id
    FROM ended
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM pgjobs_job AS j
        WHERE j.sequence = ended.sequence AND j.sequence IS NOT NULL AND j.hold = 'blocked' AND j.finished_at IS NULL
        ORDER BY j.id
        LIMIT 1
    ) AS head
    WHERE ended.sequence IS NOT NULL
),
wanted AS MATERIALIZED (
    -- Each once, however many ends count in it.
    SELECT DISTINCT job_id FROM fed
),
free AS MATERIALIZED (
    -- Shared: workers that look at the same time take no other worker's look for a lock.
    SELECT g.job_id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT gate.job_id FROM pgjobs_gate AS gate WHERE gate.job_id = wanted.job_id FOR SHARE SKIP LOCKED
    ) AS g
),
locked AS MATERIALIZED (
    SELECT wanted.job_id
    FROM wanted
    CROSS JOIN LATERAL (SELECT gate.job_id FROM pgjobs_gate AS gate WHERE gate.job_id = wanted.job_id OFFSET 0) AS g
    WHERE wanted.job_id NOT IN (SELECT job_id FROM free)
)
SELECT id, job_id FROM fed WHERE job_id IN (SELECT job_id FROM locked)
UNION ALL
SELECT id, -1 - bucket FROM ended WHERE bucket IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(%(class)s::integer, bucket)
