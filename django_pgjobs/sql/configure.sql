-- configure: set parameters of this session, or of the open transaction only.
-- Fence: none (settings).
-- Rows: one per parameter.
-- Clock: none.
SELECT set_config(s.name, s.value, %(local)s::boolean)
FROM unnest(%(names)s::text[], %(values)s::text[]) AS s (name, value)
