-- read_leader: the current or latest leader.
-- Fence: none (reads).
-- Rows: 1 = the worker's name and the seconds left of its term, negative if it is over; 0 = no worker ever led.
-- Clock: statement_timestamp().
SELECT worker_name, extract(epoch FROM expires_at - statement_timestamp())::float8
FROM pgjobs_leader_term
WHERE id = 1
