-- lock_imported: lock jobs that no worker has started, that do not move to another database, and that no other job needs.
-- Fence: none (only unclaimed jobs).
-- Rows: one per job that was locked: its id.
-- Clock: none.
SELECT j.id
FROM pgjobs_job AS j
WHERE j.id = ANY (%(ids)s::bigint[])
  AND j.finished_at IS NULL
  AND j.claimed_at IS NULL -- not its attempt, which a snooze or a next step takes back
  AND j.ending IS NULL
  AND j.hold IS DISTINCT FROM 'moving'
  AND (SELECT true FROM pgjobs_link AS l WHERE l.parent_id = ANY (ARRAY[j.id]) LIMIT 1) IS NULL
FOR UPDATE OF j SKIP LOCKED
