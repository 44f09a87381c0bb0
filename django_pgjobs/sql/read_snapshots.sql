-- read_snapshots: what keeps dead rows of this database: old transactions, prepared ones, replication slots without a reader.
-- Fence: none (reads).
-- Rows: one each: its kind, its name or pid, who it is, and its seconds or null; or, of kind hidden, this role and those it cannot see.
-- Clock: statement_timestamp().
SELECT 'transaction', a.pid::text, concat_ws(' ', a.usename, a.application_name), extract(epoch FROM statement_timestamp() - a.xact_start)::float8
FROM pg_stat_activity AS a
WHERE a.backend_xmin IS NOT NULL
  AND a.datname = current_database()
  AND a.pid <> pg_backend_pid()
  AND a.xact_start < statement_timestamp() - make_interval(secs => %(seconds)s)
  -- An automatic ANALYZE ends by itself, and no VACUUM heeds the snapshot of another.
  AND a.backend_type <> 'autovacuum worker'
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
UNION ALL
SELECT 'prepared', quote_literal(p.gid), p.owner::text, extract(epoch FROM statement_timestamp() - p.prepared)::float8
FROM pg_prepared_xacts AS p
WHERE p.database = current_database()
  AND p.prepared < statement_timestamp() - make_interval(secs => %(seconds)s)
UNION ALL
SELECT 'slot', quote_literal(s.slot_name), s.slot_type, NULL
FROM pg_replication_slots AS s
WHERE NOT s.active
  AND s.xmin IS NOT NULL -- catalog_xmin keeps rows of catalogs only
UNION ALL
SELECT 'hidden', quote_ident(current_user), string_agg(DISTINCT a.usename::text, ', ' ORDER BY a.usename::text), NULL
FROM pg_stat_activity AS a
WHERE a.datname = current_database()
  AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
  AND NOT pg_has_role(a.usesysid, 'USAGE')
HAVING count(*) > 0
ORDER BY 1, 4 DESC
