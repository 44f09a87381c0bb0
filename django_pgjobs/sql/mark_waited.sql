-- mark_waited: ask for a notification at a job's end; read whether it has ended. Waits for no lock: a locked row is not marked.
-- Fence: none (no write of an attempt; every end reads the column).
-- Rows: 1 = whether it has ended, and whether it is marked; 0 = no such job is committed.
-- Clock: none.
WITH locked AS MATERIALIZED (
    SELECT id FROM pgjobs_job WHERE id = %(id)s::bigint AND NOT waited FOR NO KEY UPDATE SKIP LOCKED
),
marked AS (
    UPDATE pgjobs_job AS j
    SET waited = true
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING j.finished_at IS NOT NULL AS ended
)
SELECT
    coalesce((SELECT ended FROM marked), finished_at IS NOT NULL),
    waited OR EXISTS (SELECT FROM marked)
FROM pgjobs_job
WHERE id = %(id)s::bigint
