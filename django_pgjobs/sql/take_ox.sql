-- take_ox: discard locked tasks of django-ox, and note the job that each of them is here.
-- Fence: none (rows of another queue that the caller has locked).
-- Rows: one per task: its id there.
-- Clock: statement_timestamp().
WITH taken AS (
    UPDATE django_ox_oxtask AS t
    SET status = 'DISCARDED', finished_at = statement_timestamp()
    FROM unnest(%(ids)s::uuid[], %(job_ids)s::bigint[]) AS w (id, job_id)
    WHERE t.id = ANY (ARRAY[w.id]) AND t.status = 'READY'
    RETURNING t.id, w.job_id
)
INSERT INTO pgjobs_import (source, source_id, job_id, run)
SELECT 'django-ox', taken.id::text, taken.job_id, %(run)s::text
FROM taken
RETURNING source_id
