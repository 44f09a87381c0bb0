-- read_payload: the payload of a job too big for the channel, only while its claim holds.
-- Fence: required.
-- Rows: 1 = payload and headers; 0 = lease lost.
-- Clock: none.
SELECT j.payload::text
FROM pgjobs_job AS j
WHERE j.id = %(id)s::bigint
  AND j.claim_id = %(claim_id)s::uuid -- fence
  AND j.outcome IS NULL -- fence
