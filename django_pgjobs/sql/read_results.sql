-- read_results: the results of jobs that a payload refers to, of those alone that the job needs.
-- Fence: none (reads).
-- Rows: one per job that exists: its outcome, null before it ends, and its result as JSON text, null without one.
-- Clock: none.
SELECT j.id, j.outcome, j.result::text
FROM unnest(%(ids)s::bigint[]) AS r (id)
JOIN pgjobs_link AS l ON l.parent_id = ANY (ARRAY[r.id]) AND l.job_id = ANY (ARRAY[%(id)s::bigint])
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[l.parent_id])
