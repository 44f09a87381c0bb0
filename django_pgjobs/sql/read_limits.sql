-- read_limits: the limits that operators have set and that are in force. The table is nearly always empty.
-- Fence: none (reads).
-- Rows: one per queue, name of a job or its keys: id, kind, name, its numbers, when, by whom, why, and until when.
-- Clock: statement_timestamp().
SELECT id, kind, name, concurrency, rate, per, set_at, left(set_by, 200), left(reason, 500),
    CASE WHEN isfinite(until) THEN until END
FROM pgjobs_limit
WHERE until IS NULL OR until > statement_timestamp()
ORDER BY kind DESC, name
