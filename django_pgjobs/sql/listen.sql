-- listen: receive notifications of registered jobs on this connection.
-- Fence: none (writes nothing).
-- Rows: none.
-- Clock: none.
LISTEN pgjobs
