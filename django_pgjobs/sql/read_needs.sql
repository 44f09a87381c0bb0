-- read_needs: what one job waits for, by its gate.
-- Fence: none (reads).
-- Rows: 1, with the first of the needed jobs that have not ended; 0 = it has no gate.
-- Clock: none.
SELECT
    g.total, g.pending - g.hands, g.hands > 0, g.eager,
    ARRAY (
        SELECT l.parent_id
        FROM pgjobs_link AS l
        JOIN pgjobs_job AS n ON n.id = ANY (ARRAY[l.parent_id])
        WHERE l.job_id = ANY (ARRAY[g.job_id]) AND n.finished_at IS NULL
        ORDER BY l.parent_id
        LIMIT %(most)s::integer
    )
FROM pgjobs_gate AS g
WHERE g.job_id = ANY (ARRAY[%(id)s::bigint])
