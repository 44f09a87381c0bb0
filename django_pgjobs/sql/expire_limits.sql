-- expire_limits: delete operators' limits that ended long ago.
-- Fence: none (writes no job).
-- Rows: one per limit deleted.
-- Clock: statement_timestamp().
DELETE FROM pgjobs_limit
WHERE until <= statement_timestamp() - make_interval(secs => %(kept)s::float8)
RETURNING kind, name
