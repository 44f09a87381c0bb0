-- list_arrivals: the jobs that have arrived from another database, and are held until they are given away there.
-- Fence: none (reads).
-- Rows: one per job: its id there, and here.
-- Clock: none.
SELECT (j.options #>> '{move,id}')::bigint AS old_id, j.id
FROM pgjobs_job AS j
WHERE j.hold = 'moving' AND j.finished_at IS NULL AND j.options #>> '{move,from}' = %(source)s::text
ORDER BY 1
