-- write_minutes: write how many attempts ended in one minute on one worker, and how long they took; the new values replace those of the rows.
-- Fence: none (the worker's own rows; a repetition writes the same).
-- Rows: 1: the minute that has begun by now, as text.
-- Clock: statement_timestamp().
WITH written AS (
    INSERT INTO pgjobs_minute AS m (
        worker, minute, queue, name, outcome, release, jobs, run_seconds, wait_seconds, run_histogram, wait_histogram
    )
    SELECT
        %(worker)s::uuid, %(minute)s::timestamptz, i.queue, i.name, i.outcome, %(release)s::text, i.jobs, i.run_seconds,
        i.wait_seconds, i.run_histogram, i.wait_histogram
    FROM json_to_recordset(%(items)s::json) AS i (
        queue text, name text, outcome text, jobs bigint, run_seconds float8, wait_seconds float8,
        run_histogram bigint[], wait_histogram bigint[]
    )
    ON CONFLICT (worker, minute, queue, name, outcome, release) DO UPDATE
    SET jobs = excluded.jobs,
        run_seconds = excluded.run_seconds,
        wait_seconds = excluded.wait_seconds,
        run_histogram = excluded.run_histogram,
        wait_histogram = excluded.wait_histogram
    RETURNING 1
)
SELECT date_trunc('minute', statement_timestamp(), 'UTC')::text
