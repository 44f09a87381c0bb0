-- read_upkeep: whether autovacuum is off for some tables, how many rows they have and how many changed since they were analysed, and their size.
-- Fence: none (reads).
-- Rows: one per table.
-- Clock: none.
SELECT
    c.relname::text,
    coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false),
    greatest(c.reltuples::float8, pg_stat_get_live_tuples(c.oid)::float8),
    pg_stat_get_mod_since_analyze(c.oid),
    pg_total_relation_size(c.oid)
FROM pg_class AS c
WHERE c.relname = ANY (%(tables)s::text[])
  AND pg_table_is_visible(c.oid)
ORDER BY c.relname
