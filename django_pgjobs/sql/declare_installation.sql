-- declare_installation: say which database this is, in place of what was read; an operator adopts it whatever stands there.
-- Fence: none (no job; it writes only over what was read).
-- Rows: 1 = written; 0 = it says something else by now.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_installation AS i (
    id, system, database_oid, database_name, table_oid, version, environment, adopted_at, adopted_by,
    written_in
)
VALUES (
    1, %(system)s::text, %(database)s::bigint, %(name)s::text, %(table)s::bigint, %(version)s::integer,
    %(environment)s::text, statement_timestamp(), %(by)s::text, pg_current_xact_id()::xid::text::bigint
)
ON CONFLICT (id) DO UPDATE
SET system = excluded.system,
    database_oid = excluded.database_oid,
    database_name = excluded.database_name,
    table_oid = excluded.table_oid,
    version = excluded.version,
    environment = excluded.environment,
    adopted_at = excluded.adopted_at,
    adopted_by = excluded.adopted_by,
    written_in = excluded.written_in
WHERE jsonb_build_array(i.system, i.database_oid, i.environment) = %(before)s::jsonb
RETURNING i.id
