-- commit_durably: have the commit of the open transaction wait for the disk, whatever the role's default says.
-- Fence: none (a setting of the transaction).
-- Rows: 1 = the setting.
-- Clock: none.
SELECT set_config(
    'synchronous_commit',
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
    true
)
