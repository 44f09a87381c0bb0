-- resume: let queues, or jobs by their names, go on; what was held is let go by the workers, some at a time.
-- Fence: none (writes no job).
-- Rows: one per name that was paused.
-- Clock: statement_timestamp().
WITH resumed AS (
    DELETE FROM pgjobs_queue_state
    WHERE kind = %(kind)s::text AND name = ANY (%(names)s::text[])
    RETURNING name, until IS NULL OR until > statement_timestamp() AS was_paused
)
SELECT name FROM resumed WHERE was_paused
