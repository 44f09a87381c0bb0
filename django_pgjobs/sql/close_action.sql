-- close_action: store why an operator's action skipped jobs.
-- Fence: none (a record decides nothing).
-- Rows: none.
-- Clock: none.
UPDATE pgjobs_action
SET skipped = %(skipped)s::jsonb
WHERE id = %(id)s::bigint
