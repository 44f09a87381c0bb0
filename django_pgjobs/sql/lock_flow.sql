-- lock_flow: lock jobs of a flow, or those that have some keys, in the order of their ids, and read what a retry has to know of them.
-- Fence: none (changes nothing).
-- Rows: one per job: its outcome, parent and flow, whether it waits, whether it has begun, whether its gate has cancelled it, or is about to, whether nothing went wrong with it, and whether it is abandoned, or is about to be.
-- Clock: none.
SELECT
    j.id, j.outcome, j.parent_id, j.flow,
    j.outcome IS NULL AND j.hold IS NOT DISTINCT FROM 'blocked' AS waits,
    j.attempt > 0 OR j.claim_id IS NOT NULL AND j.outcome IS NULL AS begun,
    j.cancel_requested_at IS NULL AND j.cancel_by IN ('pgjobs:flow', 'pgjobs:not_needed') AS by_gate,
    j.outcome = 'succeeded' OR (j.outcome = 'cancelled' AND j.cancel_by = 'pgjobs:not_needed') AS well,
    j.cancel_requested_at IS NULL AND coalesce(j.outcome, j.ending, '') = 'abandoned' AS abandoned
FROM pgjobs_job AS j
WHERE j.id = ANY (%(ids)s::bigint[])
ORDER BY j.id
FOR NO KEY UPDATE OF j
