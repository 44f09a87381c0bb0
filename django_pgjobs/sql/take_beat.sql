-- take_beat: disable locked schedules in django-celery-beat, tell its process, and note what each of them is here.
-- Fence: none (rows of another scheduler that the caller has locked).
-- Rows: one per schedule: its id there.
-- Clock: statement_timestamp().
WITH taken AS (
    UPDATE django_celery_beat_periodictask AS p
    SET enabled = false
    FROM unnest(%(ids)s::integer[], %(job_ids)s::bigint[], %(entries)s::text[]) AS w (id, job_id, entry)
    JOIN django_celery_beat_periodictask AS o ON o.id = w.id
    WHERE p.id = ANY (ARRAY[w.id])
    RETURNING p.id, w.job_id, jsonb_build_object('entry', w.entry, 'enabled', o.enabled) AS original
),
notified AS (
    INSERT INTO django_celery_beat_periodictasks AS p (ident, last_update)
    VALUES (1, statement_timestamp())
    ON CONFLICT (ident) DO UPDATE
    SET last_update = greatest(excluded.last_update, p.last_update + interval '1 microsecond')
)
INSERT INTO pgjobs_import (source, source_id, job_id, run, original)
SELECT 'django-celery-beat', taken.id::text, taken.job_id, %(run)s::text, taken.original
FROM taken
RETURNING source_id
