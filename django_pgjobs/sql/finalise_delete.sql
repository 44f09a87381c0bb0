-- finalise_delete: end jobs by deleting them with their history; a job that others wait for, or that has steps, stays as it is.
-- Fence: required.
-- Rows: one per job deleted; a missing one was locked, lost, deleted before, or has a waiter or steps.
-- Clock: none.
WITH ended AS MATERIALIZED (
    SELECT id, claim_id FROM unnest(%(ids)s::bigint[], %(claim_ids)s::uuid[]) AS e (id, claim_id)
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM ended
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[ended.id])
    WHERE NOT j.waited
      AND j.flow = 0
      AND j.claim_id = ended.claim_id -- fence
      AND j.outcome IS NULL -- fence
    FOR UPDATE OF j SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_job AS j
    USING locked
    WHERE j.id = ANY (ARRAY[locked.id])
    RETURNING j.id
),
history AS (
    DELETE FROM pgjobs_attempt AS a
    USING gone
    WHERE a.job_id = ANY (ARRAY[gone.id])
)
SELECT id FROM gone
