-- check_claims: the server's time, and whether a ledger row is to be checked now or in a moment; a rescue goes by that time.
-- Fence: none (reads).
-- Rows: 1 = the time, and whether a row is due within that many seconds.
-- Clock: statement_timestamp().
SELECT
    statement_timestamp(),
    EXISTS (
        SELECT FROM pgjobs_claim AS k
        WHERE k.check_at <= statement_timestamp() + make_interval(secs => %(soon)s::float8)
    )
