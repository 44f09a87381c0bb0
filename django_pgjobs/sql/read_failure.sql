-- read_failure: read how the latest attempt in the history of a job failed, for its callback.
-- Fence: none (reads; the failure does not depend on the claim).
-- Rows: 1 = kind, message, chain and traceback; 0 = no attempt is kept.
-- Clock: none.
SELECT exception, message, chain::text, traceback
FROM pgjobs_attempt
WHERE job_id = %(id)s::bigint
ORDER BY id DESC
LIMIT 1
