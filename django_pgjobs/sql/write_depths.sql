-- write_depths: keep the most that waits in each queue in this minute.
-- Fence: none (numbers decide nothing; of two leaders at once the larger figure stays).
-- Rows: one per queue.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_depth AS d (minute, queue, ready, scheduled, running, held, oldest_seconds)
SELECT
    date_trunc('minute', statement_timestamp(), 'UTC'), i.queue, i.ready, i.scheduled, i.running, i.held, i.oldest_seconds
FROM json_to_recordset(%(items)s::json) AS i (
    queue text, ready bigint, scheduled bigint, running bigint, held bigint, oldest_seconds float8
)
ORDER BY i.queue -- two leaders at once must not deadlock
ON CONFLICT (minute, queue) DO UPDATE
SET ready = greatest(d.ready, excluded.ready),
    scheduled = greatest(d.scheduled, excluded.scheduled),
    running = greatest(d.running, excluded.running),
    held = greatest(d.held, excluded.held),
    oldest_seconds = greatest(d.oldest_seconds, excluded.oldest_seconds)
RETURNING 1
