-- take_ox_schedules: disable locked schedules in django-ox, tell its workers, and note what each of them is here.
-- Fence: none (rows of another scheduler that the caller has locked).
-- Rows: one per schedule: its id there.
-- Clock: statement_timestamp().
WITH taken AS (
    UPDATE django_ox_oxschedule AS p
    SET enabled = false
    FROM unnest(%(ids)s::bigint[], %(job_ids)s::bigint[], %(entries)s::text[]) AS w (id, job_id, entry)
    JOIN django_ox_oxschedule AS o ON o.id = w.id
    WHERE p.id = ANY (ARRAY[w.id])
    RETURNING p.id, w.job_id, jsonb_build_object('entry', w.entry, 'enabled', o.enabled) AS original
),
notified AS (
    INSERT INTO django_ox_oxschedulechange AS c (id, changed_at)
    VALUES (1, statement_timestamp())
    ON CONFLICT (id) DO UPDATE SET changed_at = greatest(excluded.changed_at, c.changed_at + interval '1 microsecond')
)
INSERT INTO pgjobs_import (source, source_id, job_id, run, original)
SELECT 'django-ox-schedules', taken.id::text, taken.job_id, %(run)s::text, taken.original
FROM taken
RETURNING source_id
