-- enter_schema: let this session find tables in one schema before those on the path that it has.
-- Fence: none (a setting of the session).
-- Rows: 1 = the new path.
-- Clock: none.
SELECT set_config(
    'search_path', concat_ws(', ', quote_ident(%(schema)s::text), nullif(current_setting('search_path'), '')), false
)
