-- count_prunable: how many ended jobs of one outcome are past their retention.
-- Fence: none (reads).
-- Rows: 1 = how many.
-- Clock: statement_timestamp().
SELECT count(*)
FROM pgjobs_job
WHERE finished_at IS NOT NULL
  AND outcome = %(outcome)s::text
  AND finished_at < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
  AND (queue = ANY (%(queues)s::text[])) = %(only)s::boolean
  AND (%(names)s::text[] IS NULL OR name = ANY (%(names)s::text[]))
