-- read_distributed: whether Citus has distributed any of our tables; only where it is installed, as its catalog exists nowhere else.
-- Fence: none (reads).
-- Rows: 1.
-- Clock: none.
SELECT EXISTS (
    SELECT
    FROM pg_dist_partition AS p
    INNER JOIN pg_class AS c ON c.oid = p.logicalrelid
    WHERE left(c.relname, 7) = 'pgjobs_'
      AND pg_table_is_visible(c.oid)
      AND NOT (p.partmethod = 'n' AND p.repmodel <> 't' AND p.colocationid = 0) -- known to Citus, and left where it is
)
