-- withdraw_event: take an event back that no job has read; waits for transactions that read, send or begin to wait for it at the same time.
-- Fence: none (decided under the lock of the event).
-- Rows: 1 = taken back; 0 = it was not sent, or a job has read it.
-- Clock: none.
UPDATE pgjobs_event AS e
SET payload = NULL,
    sent_at = NULL,
    sent_by = ''
WHERE e.name = ANY (ARRAY[%(name)s::text]) AND e.sent_at IS NOT NULL
  AND e.read_at IS NULL
RETURNING e.name
