-- settle_doubts: what jobs came to by their own transactions; the lock shows that none of these is still committing.
-- Fence: none (reads).
-- Rows: one per job; a missing one is locked or gone.
-- Clock: none.
SELECT
    j.id,
    j.claim_id IS NOT DISTINCT FROM fence.claim_id AS ours,
    coalesce(j.outcome = 'succeeded', false) AS succeeded,
    j.outcome IS NULL AND coalesce(j.ending = 'succeeded', false) AS marked,
    CASE
        WHEN j.flow <> 0
        -- Not EXISTS, which the planner may answer with a hash of all steps.
        THEN (SELECT 1 FROM pgjobs_step AS s WHERE s.job_id = j.id AND s.claim_id = fence.claim_id LIMIT 1) IS NOT NULL
        ELSE false
    END AS stepped
FROM unnest(%(ids)s::bigint[], %(claim_ids)s::uuid[]) AS fence (id, claim_id)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[fence.id])
FOR NO KEY UPDATE OF j SKIP LOCKED
