-- read_q2: schedules of django-q2, only some or all of them, and which ones an import has taken before.
-- Fence: none (reads).
-- Rows: one per schedule: its id, whether it was taken, and its row.
-- Clock: none.
SELECT s.id::text, i.source_id IS NOT NULL AS noted, to_jsonb(s)::text
FROM django_q_schedule AS s
LEFT JOIN pgjobs_import AS i ON i.source = 'django-q2-schedules' AND i.source_id = s.id::text
WHERE %(ids)s::integer[] IS NULL OR s.id = ANY (%(ids)s::integer[])
ORDER BY s.id
