-- read_cursors: how far a running job has come in each of the things that it goes through, and how many bytes its other options take. Waits for a batch that is being committed: a process that has died may leave one to the run that follows it under the same claim.
-- Fence: required.
-- Rows: 1 = still ours; 0 = lost.
-- Clock: none.
SELECT (j.options -> 'each')::text, octet_length((j.options - 'each' - 'peaks')::text)
FROM pgjobs_job AS j
WHERE j.id = ANY (ARRAY[%(id)s::bigint])
  AND j.claim_id = %(claim_id)s::uuid -- fence
  AND j.outcome IS NULL -- fence
FOR NO KEY UPDATE
