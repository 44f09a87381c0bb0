-- fold_depths: keep of each hour whose day is over the most that waited, in the row of its first minute.
-- Fence: none (numbers decide nothing; of two leaders at once each deletes other rows).
-- Rows: 1 = how many rows were deleted.
-- Clock: statement_timestamp().
WITH old AS (
    DELETE FROM pgjobs_depth AS d
    WHERE d.minute < date_trunc('hour', statement_timestamp() - make_interval(secs => %(seconds)s::float8), 'UTC')
      AND d.minute <> date_trunc('hour', d.minute, 'UTC')
    RETURNING d.minute, d.queue, d.ready, d.scheduled, d.running, d.held, d.oldest_seconds
),
kept AS (
    INSERT INTO pgjobs_depth AS d (minute, queue, ready, scheduled, running, held, oldest_seconds)
    SELECT
        date_trunc('hour', old.minute, 'UTC') AS hour, old.queue, max(old.ready), max(old.scheduled), max(old.running),
        max(old.held), max(old.oldest_seconds)
    FROM old
    GROUP BY hour, old.queue
    ORDER BY hour, old.queue -- two leaders at once must not deadlock
    ON CONFLICT (minute, queue) DO UPDATE
    SET ready = greatest(d.ready, excluded.ready),
        scheduled = greatest(d.scheduled, excluded.scheduled),
        running = greatest(d.running, excluded.running),
        held = greatest(d.held, excluded.held),
        oldest_seconds = greatest(d.oldest_seconds, excluded.oldest_seconds)
)
SELECT count(*) FROM old
