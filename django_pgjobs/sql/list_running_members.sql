-- list_running_members: members of some batches that workers have claimed, found through the ledger of claims.
-- Fence: none (reads).
-- Rows: one per member: its id.
-- Clock: none.
SELECT j.id
FROM pgjobs_claim AS k
CROSS JOIN LATERAL unnest(k.job_ids) AS m (id)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[m.id])
WHERE j.parent_id = ANY (%(ids)s::bigint[])
  AND j.claim_id = k.claim_id
  AND j.outcome IS NULL
