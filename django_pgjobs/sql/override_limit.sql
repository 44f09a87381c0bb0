-- override_limit: set the limit of a queue, of a job by its names, or of its keys, in place of the code's numbers.
-- Fence: none (writes no job).
-- Rows: one per name, with the limit as stored; 0 = it would be over already.
-- Clock: statement_timestamp().
WITH until AS (
    SELECT coalesce(
        %(until)s::timestamptz, statement_timestamp() + make_interval(secs => %(seconds)s::float8)
    ) AS instant
)
INSERT INTO pgjobs_limit AS o (kind, name, concurrency, rate, per, set_at, set_by, reason, until)
SELECT
    %(kind)s::text, chosen.name, %(concurrency)s::integer, %(rate)s::integer, %(per)s::float8, statement_timestamp(),
    %(by)s::text, %(reason)s::text, until.instant
FROM unnest(%(names)s::text[]) AS chosen (name), until
WHERE until.instant IS NULL OR until.instant > statement_timestamp()
ON CONFLICT (kind, name) DO UPDATE
SET concurrency = excluded.concurrency,
    rate = excluded.rate,
    per = excluded.per,
    set_at = excluded.set_at,
    set_by = excluded.set_by,
    reason = excluded.reason,
    until = excluded.until
RETURNING o.id, o.kind, o.name, o.concurrency, o.rate, o.per, o.set_at, o.set_by, o.reason, o.until
