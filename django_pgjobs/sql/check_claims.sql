-- check_claims: the server's time, and whether a lease has run out or will in a moment; a rescue uses that time.
-- Fence: none (reads).
-- Rows: 1 = the time, and whether a lease runs out within that many seconds.
-- Clock: statement_timestamp().
SELECT
    statement_timestamp(),
    EXISTS (
        SELECT FROM pgjobs_claim AS k
        -- Its index; it is never later than the lease.
        WHERE k.check_at <= statement_timestamp() + make_interval(secs => %(soon)s::float8)
          AND k.lease_expires_at <= statement_timestamp() + make_interval(secs => %(soon)s::float8)
    )
