-- list_unheld: the unfinished jobs that carry one of these claims of a worker and are not among those that it holds.
-- Fence: none (reads).
-- Rows: one per such job, with its claim; at most ``limit``.
-- Clock: none.
SELECT j.id, j.claim_id
FROM pgjobs_claim AS k
CROSS JOIN LATERAL unnest(k.job_ids) AS m (id)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[m.id])
WHERE k.claim_id = ANY (%(claim_ids)s::uuid[])
  AND j.claim_id = k.claim_id
  AND j.outcome IS NULL
  AND j.id <> ALL (%(held)s::bigint[])
LIMIT %(limit)s::integer
