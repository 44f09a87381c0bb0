-- check_claims: the server's time, and whether a ledger row is due for a check now or in a moment; a rescue uses that time.
-- Fence: none (reads).
-- Rows: 1 = the time, and whether a row is due within that many seconds.
-- Clock: statement_timestamp().
SELECT
    statement_timestamp(),
    EXISTS (
        SELECT FROM pgjobs_claim AS k
        WHERE k.check_at <= statement_timestamp() + make_interval(secs => %(soon)s::float8)
    )
