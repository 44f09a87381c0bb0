-- notify_queues: wake workers that serve these queues; a word is a priority, 'limited' for those who let jobs in, or 'behind' if old jobs may be claimed again.
-- Fence: none (writes nothing).
-- Rows: one per pair, no content.
-- Clock: none.
SELECT pg_notify('pgjobs', n.word || ':' || n.queue)
FROM unnest(%(queues)s::text[], %(words)s::text[]) AS n (queue, word)
