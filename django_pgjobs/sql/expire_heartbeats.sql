-- expire_heartbeats: delete workers without a heartbeat for long; a worker that wakes up writes its row again.
-- Fence: none (a heartbeat grants no right).
-- Rows: one per worker deleted.
-- Clock: statement_timestamp().
DELETE FROM pgjobs_heartbeat
WHERE last_beat_at < statement_timestamp() - make_interval(secs => %(kept)s::float8)
RETURNING id
