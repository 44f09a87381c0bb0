-- restore_limit: end what operators have set for a queue, a job by its names, or its keys: the code's numbers apply again.
-- Fence: none (writes no job).
-- Rows: one per name whose limit was in force.
-- Clock: statement_timestamp().
UPDATE pgjobs_limit
SET until = statement_timestamp()
WHERE kind = %(kind)s::text
  AND name = ANY (%(names)s::text[])
  AND (until IS NULL OR until > statement_timestamp())
RETURNING name
