-- expire_heartbeats: delete workers that have not beaten for long; one that wakes up writes its row anew.
-- Fence: none (a heartbeat grants no right).
-- Rows: one per worker deleted.
-- Clock: statement_timestamp().
DELETE FROM pgjobs_heartbeat
WHERE last_beat_at < statement_timestamp() - make_interval(secs => %(kept)s::float8)
RETURNING id
