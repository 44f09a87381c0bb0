-- read_flags: which of these claimed jobs are lost, or carry a request to cancel or release. Locks nothing.
-- Fence: none (reads).
-- Rows: one per such job; jobs in order are left out, and those that have succeeded, or continued with their next step, under this claim, by their own transactions.
-- Clock: none.
SELECT
    fence.id, fence.claim_id,
    (j.id IS NULL OR j.claim_id IS DISTINCT FROM fence.claim_id OR coalesce(j.outcome <> 'succeeded', false)) AS lost,
    j.cancel_requested_at IS NOT NULL AS cancelled,
    coalesce(j.cancel_mode, ''), coalesce(left(j.cancel_by, 200), ''), coalesce(left(j.cancel_reason, 2000), ''),
    j.release_requested_at IS NOT NULL AS released
FROM unnest(%(ids)s::bigint[], %(claim_ids)s::uuid[]) AS fence (id, claim_id)
LEFT JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[fence.id])
WHERE j.id IS NULL
   OR (
       j.claim_id IS DISTINCT FROM fence.claim_id
       AND (
           j.flow = 0
           OR (SELECT 1 FROM pgjobs_step AS s WHERE s.job_id = j.id AND s.claim_id = fence.claim_id LIMIT 1) IS NULL
       )
   )
   OR j.outcome <> 'succeeded'
   OR (j.outcome IS NULL AND (j.cancel_requested_at IS NOT NULL OR j.release_requested_at IS NOT NULL))
