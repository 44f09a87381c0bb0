-- check_client: have the server notice within half a second that the client of a running statement has gone.
-- Fence: none (session).
-- Rows: none.
-- Clock: none.
SET client_connection_check_interval TO '500ms'
