-- sweep_pauses: forget pauses that are over; they have no effect any more.
-- Fence: none (writes no job).
-- Rows: one per pause forgotten.
-- Clock: statement_timestamp().
DELETE FROM pgjobs_queue_state
WHERE until <= statement_timestamp()
RETURNING kind, name
