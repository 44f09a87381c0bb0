-- list_undone: which of these jobs something undoes or has undone, them or the batch or flow of which they are members; not those whose undo was cancelled before it began.
-- Fence: none (reads).
-- Rows: one per job.
-- Clock: none.
SELECT w.id
FROM unnest(%(ids)s::bigint[]) AS w (id)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[w.id])
WHERE (
    -- Not EXISTS, which the planner may answer with a hash of all jobs.
    SELECT true
    FROM pgjobs_job AS u
    WHERE u.target_id = ANY (ARRAY[j.id, CASE WHEN j.flow & 1 = 1 THEN j.parent_id END])
      AND u.target_id IS NOT NULL
      AND u.name = 'pgjobs.undo'
      AND NOT (u.attempt = 0 AND u.outcome IS NOT DISTINCT FROM 'cancelled')
    LIMIT 1
)
