-- list_workers: the workers that live, and which queues they serve.
-- Fence: none (reads).
-- Rows: one per worker that lives = name, state, queues and excluded queues as JSON, places, jobs held.
-- Clock: statement_timestamp().
SELECT h.name, h.state, h.queues::text, h.excluded_queues::text, h.processes::bigint * h.threads, h.running
FROM pgjobs_heartbeat AS h
WHERE h.state <> 'stopped' AND h.last_beat_at > statement_timestamp() - make_interval(secs => %(stale)s::float8)
