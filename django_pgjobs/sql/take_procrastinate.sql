-- take_procrastinate: cancel locked jobs in procrastinate, and note the job that each of them is here.
-- Fence: none (rows of another queue that the caller has locked).
-- Rows: one per job: its id there.
-- Clock: none.
WITH taken AS (
    UPDATE procrastinate_jobs AS p
    SET status = 'cancelled'
    FROM unnest(%(ids)s::bigint[], %(job_ids)s::bigint[]) AS w (id, job_id)
    WHERE p.id = ANY (ARRAY[w.id]) AND p.status = 'todo'
    RETURNING p.id, w.job_id
)
INSERT INTO pgjobs_import (source, source_id, job_id, run)
SELECT 'procrastinate', taken.id::text, taken.job_id, %(run)s::text
FROM taken
RETURNING source_id
