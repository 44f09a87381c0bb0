-- read_notice: how far notices have reached, and whether a job was abandoned since; a day back at most.
-- Fence: none (reads).
-- Rows: 1 = what write_notice compares, from when on failures are news, how long ago the last notice was, whether it is still to be delivered, what problems are known, and whether there is news; 0 = there is no row yet.
-- Clock: statement_timestamp().
SELECT
    n.finished_at::text,
    n.notified_at::text,
    since.at::text,
    extract(epoch FROM statement_timestamp() - n.notified_at)::float8,
    EXISTS (SELECT FROM pgjobs_job AS j WHERE j.id = ANY (ARRAY[n.job_id]) AND j.finished_at IS NULL),
    n.problems::text,
    (
        SELECT true
        FROM pgjobs_job AS j
        WHERE j.finished_at IS NOT NULL
          AND j.outcome = 'abandoned'
          AND j.finished_at >= since.at
          AND j.finished_at <= statement_timestamp() -- SQL may have written later ones
        ORDER BY j.finished_at
        LIMIT 1
    ) IS NOT NULL
FROM pgjobs_notice AS n
CROSS JOIN LATERAL (
    SELECT greatest(n.finished_at, statement_timestamp() - make_interval(secs => %(most)s::float8)) AS at
) AS since
WHERE n.id = 1
