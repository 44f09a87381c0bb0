-- beat: record that this worker is alive, or that it has stopped, after which nothing changes the row, and read what it is asked to do, and whether it is asked for stacks of its jobs; grants no right to a job.
-- Fence: none (the worker's own row).
-- Rows: 1 = the number of the last request to the worker, what it asks for, by whom and why, and whether there are requests for stacks; 0 for a heartbeat that arrives after the worker's last.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_heartbeat AS h (
    id, name, host, pid, queues, excluded_queues, processes, threads, async_slots, places, version, release, state, running, finished,
    protocol, deaths, death, died_at, suspects, suspects_since, control_number, control_taken
)
VALUES (
    %(id)s::uuid, %(name)s, %(host)s, %(pid)s::integer, %(queues)s::jsonb, %(excluded_queues)s::jsonb, %(processes)s::integer,
    %(threads)s::integer, %(async_slots)s::integer, %(places)s::jsonb, %(version)s, %(release)s, %(state)s, %(running)s::integer, %(finished)s::bigint,
    %(protocol)s::smallint, %(deaths)s::integer, %(death)s,
    statement_timestamp() - make_interval(secs => %(died_seconds)s::float8), %(suspects)s::jsonb,
    CASE WHEN %(suspects)s::jsonb IS NOT NULL THEN statement_timestamp() END,
    %(control_taken)s::integer, %(control_taken)s::integer -- its row had expired: the next number is a new one
)
ON CONFLICT (id) DO UPDATE
SET last_beat_at = statement_timestamp(),
    state = excluded.state,
    running = excluded.running,
    finished = excluded.finished,
    deaths = excluded.deaths,
    death = excluded.death,
    died_at = CASE WHEN excluded.deaths = h.deaths THEN h.died_at ELSE excluded.died_at END, -- its age is not exact
    suspects = excluded.suspects,
    control_number = greatest(h.control_number, excluded.control_taken), -- a failover lost one that the worker has obeyed
    control_taken = excluded.control_taken,
    taken_at = CASE WHEN excluded.control_taken > h.control_taken THEN statement_timestamp() ELSE h.taken_at END,
    suspects_since = CASE WHEN excluded.suspects IS NOT NULL THEN coalesce(h.suspects_since, excluded.suspects_since) END
WHERE h.state <> 'stopped'
RETURNING
    h.control_number, h.control, h.control_by, h.control_reason,
    EXISTS (
        SELECT FROM pgjobs_stack AS s
        WHERE s.worker = h.id AND s.answered_at IS NULL AND s.asked_at > statement_timestamp() - interval '2 minutes'
    )
