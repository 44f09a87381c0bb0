-- list_codeless_tables: which of these tables run no code of the project when rows of them are read or updated, and their columns.
-- Fence: none (reads).
-- Rows: one per such table.
-- Clock: none.
SELECT given.name, array_agg(a.attname::text)
FROM unnest(%(names)s::text[]) AS given (name)
JOIN pg_class AS c ON c.oid = to_regclass(given.name)
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type AS t ON t.oid = a.atttypid
WHERE c.relkind = 'r' AND c.relpersistence <> 't'
  AND NOT (c.relhasrules OR c.relrowsecurity OR c.relhassubclass OR c.relispartition)
  AND NOT EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal)
  -- An update of a key that others refer to.
  AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.confrelid = c.oid AND k.confupdtype NOT IN ('a', 'r'))
  -- Functions that are not PostgreSQL's own, in constraints, generated columns and indexes.
  AND NOT EXISTS (
      SELECT
      FROM pg_depend AS d
      WHERE d.refclassid = 'pg_proc'::regclass
        AND (
            (d.classid = 'pg_constraint'::regclass
             AND d.objid IN (SELECT k.oid FROM pg_constraint AS k WHERE k.conrelid = c.oid))
            OR (d.classid = 'pg_attrdef'::regclass
                AND d.objid IN (SELECT f.oid FROM pg_attrdef AS f WHERE f.adrelid = c.oid))
            OR (d.classid = 'pg_class'::regclass
                AND d.objid IN (SELECT i.indexrelid FROM pg_index AS i WHERE i.indrelid = c.oid))
        )
  )
GROUP BY given.name
    -- Types of the project may be domains, whose checks are code, or have casts of their own.
HAVING bool_and(t.typnamespace = 'pg_catalog'::regnamespace)
