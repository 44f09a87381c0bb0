-- take_q2: delete locked schedules of django-q2, and note of each its row and what it is here.
-- Fence: none (rows of another scheduler that the caller has locked).
-- Rows: one per schedule: its id there.
-- Clock: none.
WITH taken AS (
    DELETE FROM django_q_schedule AS s
    USING unnest(%(ids)s::integer[], %(job_ids)s::bigint[], %(entries)s::text[]) AS w (id, job_id, entry)
    WHERE s.id = ANY (ARRAY[w.id])
    RETURNING s.id, w.job_id, to_jsonb(s) || jsonb_build_object('entry', w.entry) AS original
)
INSERT INTO pgjobs_import (source, source_id, job_id, run, original)
SELECT 'django-q2-schedules', taken.id::text, taken.job_id, %(run)s::text, taken.original
FROM taken
RETURNING source_id
