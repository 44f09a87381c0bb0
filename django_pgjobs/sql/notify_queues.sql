-- notify_queues: wake workers that serve these queues; a word is a priority, or 'limited' for those who let jobs in.
-- Fence: none (writes nothing).
-- Rows: one per pair, no content.
-- Clock: none.
SELECT pg_notify('pgjobs', n.word || ':' || n.queue)
FROM unnest(%(queues)s::text[], %(words)s::text[]) AS n (queue, word)
