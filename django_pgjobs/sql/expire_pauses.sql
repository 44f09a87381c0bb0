-- expire_pauses: delete pauses that ended long ago.
-- Fence: none (writes no job).
-- Rows: one per pause deleted.
-- Clock: statement_timestamp().
DELETE FROM pgjobs_queue_state
WHERE until <= statement_timestamp() - make_interval(secs => %(kept)s::float8)
RETURNING kind, name
