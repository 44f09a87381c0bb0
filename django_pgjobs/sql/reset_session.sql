-- reset_session: make this session what it was when it had been opened. Sent as one message, outside of a transaction.
-- Fence: none (session).
-- Rows: one, the process that serves this session.
-- Clock: none.
SET SESSION AUTHORIZATION DEFAULT;
RESET ROLE;
RESET ALL;
DEALLOCATE ALL;
CLOSE ALL;
UNLISTEN *;
DISCARD TEMP;
DISCARD SEQUENCES;
SELECT pg_advisory_unlock_all(), pg_backend_pid();
SET application_name TO %(application_name)s;
SET TimeZone TO %(time_zone)s
