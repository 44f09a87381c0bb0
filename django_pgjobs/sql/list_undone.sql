-- list_undone: which of these jobs something undoes or has undone; not those whose undo was cancelled before it began.
-- Fence: none (reads).
-- Rows: one per job.
-- Clock: none.
SELECT t.id
FROM unnest(%(ids)s::bigint[]) AS t (id)
CROSS JOIN LATERAL (
    -- OFFSET keeps it the inner side, whatever the statistics say.
    SELECT u.name, u.attempt, u.outcome
    FROM pgjobs_job AS u
    WHERE u.target_id = t.id AND u.target_id IS NOT NULL
    OFFSET 0
) AS undoing
WHERE undoing.name = 'pgjobs.undo' AND NOT (undoing.attempt = 0 AND undoing.outcome IS NOT DISTINCT FROM 'cancelled')
