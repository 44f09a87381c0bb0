-- need_jobs: lock jobs that a new job needs, so that the ends of those that run count in its gate.
-- Fence: none (sets a flag on unfinished jobs, under their locks).
-- Rows: one per job: its outcome, null if it has not ended; a missing one is gone.
-- Clock: none.
WITH locked AS MATERIALIZED (
    SELECT id, outcome FROM pgjobs_job WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
),
needed AS (
    UPDATE pgjobs_job AS j
    SET flow = j.flow | 2
    FROM locked
    WHERE j.id = ANY (ARRAY[locked.id]) AND locked.outcome IS NULL
)
SELECT id, outcome FROM locked
