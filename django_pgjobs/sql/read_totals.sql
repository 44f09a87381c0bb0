-- read_totals: read what the fleet has ended since the tables were made: the totals, and the workers' minutes that are not added to them yet.
-- Fence: none (reads).
-- Rows: one per queue, name, outcome and source, with its figures.
-- Clock: none.
SELECT t.queue, t.name, t.outcome, t.jobs, t.run_seconds, t.wait_seconds, t.run_histogram, t.wait_histogram
FROM pgjobs_total AS t
UNION ALL
SELECT m.queue, m.name, m.outcome, m.jobs, m.run_seconds, m.wait_seconds, m.run_histogram, m.wait_histogram
FROM pgjobs_minute AS m
WHERE m.worker > %(fleet)s::uuid AND m.worker < %(trend)s::uuid
