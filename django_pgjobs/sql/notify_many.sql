-- notify_many: send notifications; on the channel pgjobs a priority, 'limited' (to admitters), 'behind' (old jobs may be claimable again) or 'busy' (more jobs follow without notification), ':' and a queue.
-- Fence: none (writes nothing).
-- Rows: one per notification, no content.
-- Clock: none.
SELECT pg_notify(n.channel, n.payload)
FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS n (channel, payload)
