-- add_members: count new members of a batch that takes some; the last write of their registration.
-- Fence: none (an open gate of a batch that is not cancelled and has not failed fast; checked under the lock of the gate, which an earlier statement has taken).
-- Rows: 1 = counted; 0 = the batch takes no more members, or is gone.
-- Clock: none.
UPDATE pgjobs_gate AS g
SET pending = g.pending + %(n)s::bigint, total = g.total + %(n)s::bigint
WHERE g.job_id = ANY (ARRAY[%(id)s::bigint])
  AND g.opened_at IS NULL
  AND NOT g.eager
  AND NOT (g.fail_fast AND g.abandoned > 0)
  AND g.total + %(n)s::bigint <= %(most)s::bigint
  AND (
      SELECT j.finished_at IS NULL AND j.cancel_requested_at IS NULL
      FROM pgjobs_job AS j
      WHERE j.id = ANY (ARRAY[%(id)s::bigint])
  )
RETURNING g.job_id
