-- ask_stacks: ask the workers that hold these jobs where each of them is; an attempt has one open request, so another one renews it. Keeps ten of each job.
-- Fence: creates (an operator's request, about the claim that holds the job now).
-- Rows: one per job whose worker is asked.
-- Clock: statement_timestamp().
WITH held AS MATERIALIZED (
    SELECT j.id, j.claim_id, j.attempt, k.worker
    FROM unnest(%(ids)s::bigint[]) AS asked (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[asked.id])
    JOIN pgjobs_claim AS k ON k.claim_id = j.claim_id AND j.id = ANY (k.job_ids)
    WHERE j.outcome IS NULL
),
old AS (
    DELETE FROM pgjobs_stack AS s
    USING held
    WHERE s.job_id = ANY (ARRAY[held.id])
      AND s.id <= (SELECT m.id FROM pgjobs_stack AS m WHERE m.job_id = ANY (ARRAY[held.id]) ORDER BY m.id DESC OFFSET 9 LIMIT 1)
)
INSERT INTO pgjobs_stack AS s (job_id, claim_id, number, worker, asked_at, asked_by, reason)
SELECT id, claim_id, attempt, worker, statement_timestamp(), %(by)s::text, %(reason)s::text
FROM held
ORDER BY id
ON CONFLICT (worker, job_id, claim_id) WHERE answered_at IS NULL
DO UPDATE SET asked_at = excluded.asked_at, asked_by = excluded.asked_by, reason = excluded.reason
RETURNING s.job_id
