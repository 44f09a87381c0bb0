-- add_totals: add figures to the totals, which only grow.
-- Fence: none (the caller has deleted what it adds, in the same transaction).
-- Rows: one per row written.
-- Clock: none.
INSERT INTO pgjobs_total AS m (
    queue, name, outcome, jobs, run_seconds, wait_seconds, run_histogram, wait_histogram
)
SELECT
    i.queue, i.name, i.outcome, i.jobs, i.run_seconds, i.wait_seconds, i.run_histogram, i.wait_histogram
FROM json_to_recordset(%(items)s::json) AS i (
    queue text, name text, outcome text, jobs bigint, run_seconds float8, wait_seconds float8,
    run_histogram bigint[], wait_histogram bigint[]
)
ORDER BY i.queue, i.name, i.outcome -- two leaders at once must not deadlock
ON CONFLICT (queue, name, outcome) DO UPDATE
SET jobs = m.jobs + excluded.jobs,
    run_seconds = m.run_seconds + excluded.run_seconds,
    wait_seconds = m.wait_seconds + excluded.wait_seconds,
    run_histogram = coalesce(
        (
            SELECT array_agg(coalesce(one, 0) + coalesce(other, 0) ORDER BY n)
            FROM unnest(m.run_histogram, excluded.run_histogram) WITH ORDINALITY AS both_of (one, other, n)
        ),
        m.run_histogram
    ),
    wait_histogram = coalesce(
        (
            SELECT array_agg(coalesce(one, 0) + coalesce(other, 0) ORDER BY n)
            FROM unnest(m.wait_histogram, excluded.wait_histogram) WITH ORDINALITY AS both_of (one, other, n)
        ),
        m.wait_histogram
    )
RETURNING 1
