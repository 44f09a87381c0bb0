-- reserve_ids: take ids for a COPY, and the time that its delays count from.
-- Fence: none (creates nothing; unused ids are gaps).
-- Rows: 1, the ids ascending and the time, as UTC without an offset: the session's zone may repeat an hour.
-- Clock: statement_timestamp().
SELECT
    ARRAY (
        SELECT nextval(s.sequence)
        FROM (SELECT pg_get_serial_sequence('pgjobs_job', 'id')::regclass AS sequence OFFSET 0) AS s,
        generate_series(1, %(count)s::integer)
    ),
    statement_timestamp() AT TIME ZONE 'UTC'
