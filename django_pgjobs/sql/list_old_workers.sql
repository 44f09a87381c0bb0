-- list_old_workers: living workers of an older protocol.
-- Fence: none (reads).
-- Rows: one per worker: its name.
-- Clock: statement_timestamp().
SELECT h.name
FROM pgjobs_heartbeat AS h
WHERE h.protocol < %(protocol)s::smallint
  AND h.state IN ('running', 'quiet', 'draining')
  AND h.last_beat_at > statement_timestamp() - make_interval(secs => %(silent)s::float8)
ORDER BY h.name
