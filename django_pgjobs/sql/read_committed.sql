-- read_committed: let each statement of the transaction that was just opened see what is committed when it starts.
-- Fence: none (a setting of the transaction).
-- Rows: none.
-- Clock: none.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
