-- keep_jobs: let jobs stay that another database did not take: they are held as before their move; one that a limit had let in waits for it again.
-- Fence: none (only jobs that are held for this move and carry the token of this mover).
-- Rows: one per job kept, with the workers to wake (no priority: admitters).
-- Clock: statement_timestamp().
UPDATE pgjobs_job AS j
SET hold = coalesce(j.options #>> '{move,hold}', CASE WHEN j.limit_key IS NOT NULL THEN 'limited' END),
    hold_reason = j.options #>> '{move,reason}',
    options = nullif(j.options - 'move', '{}'),
    ready_at = statement_timestamp()
WHERE j.id = ANY (%(ids)s::bigint[])
  AND j.hold = 'moving'
  AND j.options #>> '{move,token}' = %(token)s::text
RETURNING j.id, j.queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority
