-- mark_waited: ask for a notification at a job's end; read how it stands.
-- Fence: none (no write of an attempt; the column is read by every end).
-- Rows: 1 = whether it has ended; 0 = no such job is committed.
-- Clock: none.
UPDATE pgjobs_job SET waited = true WHERE id = %(id)s::bigint RETURNING finished_at IS NOT NULL
