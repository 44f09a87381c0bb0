-- listen_ended: receive notifications of jobs' ends on this connection.
-- Fence: none (writes nothing).
-- Rows: none.
-- Clock: none.
LISTEN pgjobs_ended
