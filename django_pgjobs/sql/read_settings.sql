-- read_settings: some settings of this session, and where each comes from.
-- Fence: none (reads).
-- Rows: one per setting: its name, its value, and its source, such as the role or a configuration file.
-- Clock: none.
SELECT s.name, s.setting, s.source
FROM pg_settings AS s
WHERE s.name = ANY (%(names)s::text[])
