-- count_overdue: leases and deadlines that rescue should have checked long ago, and has not.
-- Fence: none (reads).
-- Rows: 1 = how many ledger rows, counted up to a bound.
-- Clock: statement_timestamp().
SELECT count(*)
FROM (
    SELECT k.part
    FROM pgjobs_claim AS k
    WHERE k.check_at < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
      AND pg_postmaster_start_time() < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    LIMIT %(most)s::integer
) AS counted
