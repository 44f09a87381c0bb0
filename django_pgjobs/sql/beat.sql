-- beat: record that this worker is alive, or that it has stopped, after which nothing changes the row; grants no right to a job.
-- Fence: none (the worker's own row).
-- Rows: 1; 0 for a heartbeat that arrives after the worker's last.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_heartbeat AS h (
    id, name, host, pid, queues, excluded_queues, processes, threads, async_slots, version, release, state, running, finished,
    protocol
)
VALUES (
    %(id)s::uuid, %(name)s, %(host)s, %(pid)s::integer, %(queues)s::jsonb, %(excluded_queues)s::jsonb, %(processes)s::integer,
    %(threads)s::integer, %(async_slots)s::integer, %(version)s, %(release)s, %(state)s, %(running)s::integer, %(finished)s::bigint,
    %(protocol)s::smallint
)
ON CONFLICT (id) DO UPDATE
SET last_beat_at = statement_timestamp(),
    state = excluded.state,
    running = excluded.running,
    finished = excluded.finished
WHERE h.state <> 'stopped'
RETURNING id
