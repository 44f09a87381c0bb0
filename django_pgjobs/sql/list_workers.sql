-- list_workers: the workers that have not stopped, by their heartbeats.
-- Fence: none (reads).
-- Rows: one per worker = name, status, queues and excluded queues as JSON, slots, running jobs, seconds since its last heartbeat.
-- Clock: statement_timestamp().
SELECT
    h.name,
    CASE
        WHEN h.state = 'lost' OR h.last_beat_at <= statement_timestamp() - make_interval(secs => %(stale)s::float8) THEN 'lost'
        WHEN h.last_beat_at <= statement_timestamp() - make_interval(secs => %(silent)s::float8) THEN 'silent'
        ELSE h.state
    END,
    h.queues::text, h.excluded_queues::text, h.processes::bigint * h.threads, h.running,
    extract(epoch FROM statement_timestamp() - h.last_beat_at)::float8
FROM pgjobs_heartbeat AS h
WHERE h.state <> 'stopped'
ORDER BY h.last_beat_at DESC
