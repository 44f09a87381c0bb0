-- read_schemas: the schemas on the search path that have our tables.
-- Fence: none (reads).
-- Rows: one per schema, the one that is used first: its name, quoted where SQL needs that, and whether every role may create in it.
-- Clock: none.
SELECT quote_ident(n.nspname), has_schema_privilege('public', n.oid, 'CREATE')
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'pgjobs_job'
  AND c.relkind IN ('r', 'p')
  AND n.nspname = ANY (current_schemas(false))
ORDER BY array_position(current_schemas(false), n.nspname)
