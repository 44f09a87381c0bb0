-- count_names: which names unfinished jobs need: their own, and those of what would undo them or undoes them now.
-- Fence: none (reads).
-- Rows: one per name and use (job, member, step: has finished steps; undo), with how many jobs or remembered steps need it.
-- Clock: none.
WITH unfinished AS MATERIALIZED (
    -- Two parts, each along an index of unfinished jobs.
    SELECT j.id, j.name, j.flow, j.parent_id, j.target_id
    FROM pgjobs_job AS j
    WHERE j.finished_at IS NULL AND j.hold IS NULL
    UNION ALL
    SELECT j.id, j.name, j.flow, j.parent_id, j.target_id
    FROM pgjobs_job AS j
    WHERE j.finished_at IS NULL AND j.hold IS NOT NULL
),
undoable AS (
    SELECT id FROM unfinished WHERE flow & 4 = 4
    UNION
    SELECT target_id FROM unfinished WHERE name = 'pgjobs.undo' AND target_id IS NOT NULL
)
SELECT needed.name, needed.use, count(*)
FROM (
    SELECT
        u.name,
        CASE WHEN u.flow & 8 = 8 THEN 'step' WHEN u.parent_id IS NOT NULL THEN 'member' ELSE 'job' END AS use
    FROM unfinished AS u
    UNION ALL
    SELECT m.undo, 'undo'
    FROM undoable
    CROSS JOIN LATERAL (
        -- OFFSET keeps it the inner side, regardless of the statistics.
        SELECT k.undo ->> 'name' AS undo
        FROM pgjobs_memo AS k
        WHERE k.job_id = undoable.id AND k.undo IS NOT NULL
        OFFSET 0
    ) AS m
) AS needed
GROUP BY needed.name, needed.use
ORDER BY needed.name, needed.use
