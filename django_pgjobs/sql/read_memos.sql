-- read_memos: what a job remembers, in the order in which it began.
-- Fence: none (reads).
-- Rows: one per memo.
-- Clock: statement_timestamp().
WITH remembered AS MATERIALIZED ( -- else a planner that expects one memo walks all of them in that order
    SELECT m.id, m.name, m.kind, m.result, m.finished_at, m.error, m.failures, m.event, m.wake_at
    FROM pgjobs_memo AS m
    WHERE m.job_id = %(id)s::bigint
)
SELECT
    m.name, m.kind, m.result::text, m.finished_at IS NOT NULL AS finished, m.error, m.failures, m.event,
    extract(epoch FROM m.wake_at - statement_timestamp())::float8 AS left_seconds
FROM remembered AS m
ORDER BY m.id
