-- need_jobs: lock jobs that a new job needs, so that the ends of those that run count in its gate, and a retry of those that have ended reopens it.
-- Fence: none (sets a flag, under the locks).
-- Rows: one per job: its outcome, null if it has not ended; a missing one is gone, or moves to another database.
-- Clock: none.
WITH locked AS MATERIALIZED (
    SELECT id, outcome FROM pgjobs_job WHERE id = ANY (%(ids)s::bigint[]) AND hold IS DISTINCT FROM 'moving' ORDER BY id FOR NO KEY UPDATE
),
needed AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow | 2
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id])
)
SELECT id, outcome FROM locked
