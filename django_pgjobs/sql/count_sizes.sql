-- count_sizes: how much room results and arguments of ended jobs take, each outcome up to a bound, the latest first.
-- Fence: none (reads).
-- Rows: one per outcome, queue and name = these, how many jobs, the bytes of their results and of their arguments as they are stored, the seconds since the first of them ended.
-- Clock: statement_timestamp().
SELECT
    known.outcome, ended.queue, ended.name, count(*), sum(ended.result_bytes)::bigint, sum(ended.argument_bytes)::bigint,
    extract(epoch FROM statement_timestamp() - min(ended.finished_at))::float8
FROM unnest(%(outcomes)s::text[]) AS known (outcome),
LATERAL (
    SELECT
        j.queue, j.name, j.finished_at,
        coalesce(pg_column_size(j.result), 0) AS result_bytes,
        coalesce(pg_column_size(j.payload), 0) AS argument_bytes
    FROM pgjobs_job AS j
    WHERE j.outcome = known.outcome
      AND j.finished_at IS NOT NULL
    ORDER BY j.finished_at DESC
    LIMIT %(most)s::integer
) AS ended
GROUP BY known.outcome, ended.queue, ended.name
