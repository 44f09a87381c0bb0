-- list_columns: the columns of some tables, as this connection sees them.
-- Fence: none (reads).
-- Rows: one per column: its table, and its name.
-- Clock: none.
SELECT c.relname::text, a.attname::text
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relname = ANY (%(tables)s::text[])
  AND pg_table_is_visible(c.oid)
  AND a.attnum > 0
  AND NOT a.attisdropped
