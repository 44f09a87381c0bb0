-- notify_queues: wake workers that serve these queues and priorities.
-- Fence: none (writes nothing).
-- Rows: one per pair, no content.
-- Clock: none.
SELECT pg_notify('pgjobs', n.priority::text || ':' || n.queue)
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) AS n (queue, priority)
