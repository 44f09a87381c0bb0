-- send_event: send an event, unless it has been sent before; waits for transactions that send it or begin to wait for it at the same time.
-- Fence: none (the first one counts; decided under the lock of the event).
-- Rows: 1 = sent; 0 = it had been sent.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_event AS e (name, payload, sent_at, sent_by)
VALUES (%(name)s::text, %(payload)s::jsonb, statement_timestamp(), %(by)s::text)
ON CONFLICT (name) DO UPDATE
SET payload = excluded.payload,
    sent_at = excluded.sent_at,
    sent_by = excluded.sent_by
WHERE e.sent_at IS NULL
RETURNING e.name
