-- is_read_only: whether this connection cannot write, as on a replica.
-- Fence: none (a plain read).
-- Rows: 1 = true or false.
-- Clock: none.
SELECT current_setting('transaction_read_only') = 'on'
