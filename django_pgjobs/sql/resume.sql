-- resume: resume queues, or jobs by their names; workers resume the held jobs in batches.
-- Fence: none (writes no job).
-- Rows: one per name that was paused. The row of a pause stays for a day: its jobs were not late during the pause.
-- Clock: statement_timestamp().
UPDATE pgjobs_queue_state
SET until = statement_timestamp()
WHERE kind = %(kind)s::text
  AND name = ANY (%(names)s::text[])
  AND (until IS NULL OR until > statement_timestamp())
RETURNING name
