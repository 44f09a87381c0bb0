-- take_minutes: delete the rows of some workers, or of the fleet, whose minute is over long enough, so that the caller adds them to rows of the fleet's minutes, or hours.
-- Fence: none (each row goes to the one caller that deletes it, in whose transaction it is added).
-- Rows: one per row deleted: the minute or hour that it belongs to, as text, and its figures; locked rows wait for the next turn.
-- Clock: statement_timestamp().
WITH old AS MATERIALIZED (
    SELECT m.worker, m.minute, m.queue, m.name, m.outcome, m.release
    FROM pgjobs_minute AS m
    WHERE m.worker >= %(least)s::uuid
      AND m.worker <= %(most)s::uuid
      AND m.minute < date_trunc(%(unit)s::text, statement_timestamp() - make_interval(secs => %(seconds)s::float8), 'UTC')
      AND (%(unit)s::text = 'minute' OR m.minute <> date_trunc(%(unit)s::text, m.minute, 'UTC'))
    ORDER BY m.worker, m.minute
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgjobs_minute AS m
USING old
WHERE m.worker = old.worker
  AND m.minute = old.minute
  AND m.queue = old.queue
  AND m.name = old.name
  AND m.outcome = old.outcome
  AND m.release = old.release
RETURNING
    date_trunc(%(unit)s::text, m.minute, 'UTC')::text, m.queue, m.name, m.outcome, m.release, m.jobs, m.run_seconds,
    m.wait_seconds, m.run_histogram, m.wait_histogram
