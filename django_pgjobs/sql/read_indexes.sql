-- read_indexes: the indexes of some tables, as this connection sees them.
-- Fence: none (reads).
-- Rows: one per index: its table, its name, its name as SQL needs it, and whether it can be used, or is being built.
-- Clock: none.
SELECT
    c.relname::text,
    i.relname::text,
    quote_ident(i.relname),
    (x.indisvalid AND x.indisready)
    -- The table is null where this role may not see what another one builds.
    OR EXISTS (
        SELECT FROM pg_stat_progress_create_index AS p
        WHERE p.datname = current_database() AND coalesce(p.relid, x.indrelid) = x.indrelid
    )
FROM pg_index AS x
JOIN pg_class AS c ON c.oid = x.indrelid
JOIN pg_class AS i ON i.oid = x.indexrelid
WHERE c.relname = ANY (%(tables)s::text[])
  AND pg_table_is_visible(c.oid)
ORDER BY c.relname, i.relname
