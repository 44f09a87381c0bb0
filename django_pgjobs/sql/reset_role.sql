-- reset_role: be the role that has logged in, until the transaction ends, whatever role it has taken on since.
-- Fence: none (a setting).
-- Rows: 1 = the role in force, none.
-- Clock: none.
SELECT set_config('role', 'none', true)
