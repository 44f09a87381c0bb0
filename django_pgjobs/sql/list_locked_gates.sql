-- list_locked_gates: the gates that another transaction has locked, of those in which the ends of some jobs count; waits for none.
-- Fence: none (reads; the locks it takes end with the statement).
-- Rows: one per job whose end has to wait, and locked gate: their ids.
-- Clock: none.
WITH fed AS MATERIALIZED (
    SELECT j.id, j.parent_id AS job_id
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[e.id])
    WHERE j.flow & 1 = 1
    UNION ALL
    SELECT e.id, l.job_id
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    CROSS JOIN LATERAL (SELECT k.job_id FROM pgjobs_link AS k WHERE k.parent_id = e.id OFFSET 0) AS l
),
free AS MATERIALIZED (
    SELECT g.job_id
    FROM (SELECT DISTINCT job_id FROM fed) AS wanted
    CROSS JOIN LATERAL (
        SELECT gate.job_id FROM pgjobs_gate AS gate WHERE gate.job_id = wanted.job_id FOR NO KEY UPDATE SKIP LOCKED
    ) AS g
)
SELECT fed.id, fed.job_id
FROM fed
CROSS JOIN LATERAL (SELECT gate.job_id FROM pgjobs_gate AS gate WHERE gate.job_id = fed.job_id OFFSET 0) AS g
WHERE fed.job_id NOT IN (SELECT job_id FROM free)
