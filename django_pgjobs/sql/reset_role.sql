-- reset_role: act as the role that logged in, until the transaction ends, regardless of the role that was set since.
-- Fence: none (a setting).
-- Rows: 1 = the current role setting, none.
-- Clock: none.
SELECT set_config('role', 'none', true)
