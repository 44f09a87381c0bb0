-- list_locked_gates: those of some jobs whose ends count in a gate that another transaction has locked; waits for none.
-- Fence: none (reads; the locks it takes end with the statement).
-- Rows: one per job whose end has to wait.
-- Clock: none.
WITH fed AS MATERIALIZED (
    SELECT j.id, j.parent_id AS job_id
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[e.id])
    WHERE j.flow & 1 = 1
    UNION ALL
    SELECT e.id, l.job_id
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    JOIN pgjobs_link AS l ON l.parent_id = ANY (ARRAY[e.id])
),
free AS MATERIALIZED (
    SELECT g.job_id
    FROM (SELECT DISTINCT job_id FROM fed) AS wanted
    JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[wanted.job_id])
    FOR NO KEY UPDATE OF g SKIP LOCKED
)
SELECT DISTINCT fed.id
FROM fed
JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[fed.job_id])
LEFT JOIN free ON free.job_id = ANY (ARRAY[fed.job_id])
WHERE free.job_id IS NULL
