-- take_q2_jobs: delete locked tasks of django-q2, and note of each its row and the job that it is here.
-- Fence: none (rows of another queue that the caller has locked).
-- Rows: one per task: its id there.
-- Clock: none.
WITH taken AS (
    DELETE FROM django_q_ormq AS t
    USING unnest(%(ids)s::integer[], %(job_ids)s::bigint[]) AS w (id, job_id)
    WHERE t.id = ANY (ARRAY[w.id])
    RETURNING t.id, w.job_id, to_jsonb(t) AS original
)
INSERT INTO pgjobs_import (source, source_id, job_id, run, original)
SELECT 'django-q2', taken.id::text, taken.job_id, %(run)s::text, taken.original
FROM taken
RETURNING source_id
