-- finalise_delete_fast: finalise_delete without the step that locks: it waits 50 ms for a locked row, then gives all up.
-- Fence: required.
-- Rows: one per job deleted; a missing one was lost, deleted before, or has a waiter or steps. A lock timeout deletes none.
-- Clock: none.
WITH gone AS (
    DELETE FROM pgjobs_job AS j
    USING ROWS FROM (unnest(%(ids)s::bigint[]), unnest(%(claims)s::smallint[])) AS done (id, claim)
    WHERE (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL -- evaluated once, before the first row
      AND NOT j.waited
      AND j.flow = 0
      AND j.id = ANY (ARRAY[done.id])
      AND j.claim_id = (%(claim_ids)s::uuid[])[done.claim] -- fence
      AND j.outcome IS NULL -- fence
    RETURNING j.id
),
history AS (
    DELETE FROM pgjobs_attempt AS a
    USING gone
    WHERE a.job_id = ANY (ARRAY[gone.id])
)
SELECT id FROM gone
