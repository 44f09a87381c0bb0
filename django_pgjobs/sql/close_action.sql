-- close_action: add to an operator's action why it skipped jobs.
-- Fence: none (a trace decides nothing).
-- Rows: none.
-- Clock: none.
UPDATE pgjobs_action
SET skipped = %(skipped)s::jsonb
WHERE id = %(id)s::bigint
