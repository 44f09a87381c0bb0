-- count_ends: add ends that no worker has written to this minute, in rows of this session's own: no two transactions wait for each other.
-- Fence: none (numbers decide nothing; the caller has ended the jobs in the same transaction).
-- Rows: one per row written.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_minute AS m (
    worker, minute, queue, name, outcome, release, jobs, run_seconds, wait_seconds, run_histogram, wait_histogram
)
SELECT
    ('00000000-0000-0000-0001-' || lpad(to_hex(pg_backend_pid()), 12, '0'))::uuid,
    date_trunc('minute', statement_timestamp(), 'UTC'), i.queue, i.name, i.outcome, '', i.jobs, 0, 0, '{}', '{}'
FROM json_to_recordset(%(items)s::json) AS i (queue text, name text, outcome text, jobs bigint)
ON CONFLICT (worker, minute, queue, name, outcome, release) DO UPDATE
SET jobs = m.jobs + excluded.jobs
RETURNING 1
