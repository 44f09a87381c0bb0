-- is_read_only: say whether nothing can be written over this connection, as on a replica.
-- Fence: none (a plain read).
-- Rows: 1 = whether it is so.
-- Clock: none.
SELECT current_setting('transaction_read_only') = 'on'
