-- lock_timeout: bound the lock waits of the open transaction.
-- Fence: none (a setting of the transaction).
-- Rows: 1 = the previous setting.
-- Clock: none.
SELECT current_setting('lock_timeout'), set_config('lock_timeout', %(timeout)s, true)
