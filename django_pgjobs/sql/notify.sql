-- notify: send one notification, as notify_many.
-- Fence: none (writes nothing).
-- Rows: 1, no content.
-- Clock: none.
SELECT pg_notify(%(channel)s::text, %(payload)s::text)
