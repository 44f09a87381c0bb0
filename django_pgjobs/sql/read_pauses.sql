-- read_pauses: which queues and which names of jobs are paused now, and the limits that operators have set. The tables are nearly always empty.
-- Fence: none (reads).
-- Rows: one per queue or name, and per limit with its numbers.
-- Clock: statement_timestamp().
SELECT kind, name, left(paused_by, 200), left(reason, 500), false, NULL::integer, NULL::integer, NULL::float8
FROM pgjobs_queue_state
WHERE until IS NULL OR until > statement_timestamp()
UNION ALL
SELECT kind, name, '', '', true, concurrency, rate, per
FROM pgjobs_limit
WHERE until IS NULL OR until > statement_timestamp()
