-- read_memos: what a job remembers.
-- Fence: none (reads).
-- Rows: one per memo.
-- Clock: statement_timestamp().
SELECT
    m.name, m.kind, m.result::text, m.finished_at IS NOT NULL AS finished, m.error, m.failures, m.event,
    extract(epoch FROM m.wake_at - statement_timestamp())::float8 AS left_seconds
FROM pgjobs_memo AS m
WHERE m.job_id = %(id)s::bigint
