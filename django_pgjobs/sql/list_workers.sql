-- list_workers: the workers that have not stopped, by their heartbeats.
-- Fence: none (reads).
-- Rows: one per worker = name, status, queues and excluded queues as JSON, slots, running jobs, seconds since its last heartbeat, its id, how an executor died last and how many seconds ago, for how many seconds there have been suspects, which as JSON, the last request to it, by whom and why, and how many seconds ago.
-- Clock: statement_timestamp().
SELECT
    left(h.name, 1000),
    CASE
        WHEN h.state = 'lost' OR h.last_beat_at <= statement_timestamp() - make_interval(secs => %(stale)s::float8) THEN 'lost'
        WHEN h.last_beat_at <= statement_timestamp() - make_interval(secs => %(silent)s::float8) THEN 'silent'
        ELSE h.state
    END,
    h.queues::text, h.excluded_queues::text, h.processes::bigint * h.threads, h.running,
    extract(epoch FROM statement_timestamp() - h.last_beat_at)::float8, h.id::text, left(h.death, 1000),
    extract(epoch FROM statement_timestamp() - h.died_at)::float8,
    CASE WHEN h.suspects IS NOT NULL THEN extract(epoch FROM statement_timestamp() - h.suspects_since)::float8 END,
    left(h.suspects::text, 5000), h.control, left(h.control_by, 200), left(h.control_reason, 500),
    extract(epoch FROM statement_timestamp() - h.controlled_at)::float8
FROM pgjobs_heartbeat AS h
WHERE h.state <> 'stopped'
ORDER BY h.last_beat_at DESC
