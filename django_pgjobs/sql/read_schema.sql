-- read_schema: the schema in which this session would create a table.
-- Fence: none (reads).
-- Rows: 1, null if nothing on its path exists.
-- Clock: none.
SELECT current_schema()
