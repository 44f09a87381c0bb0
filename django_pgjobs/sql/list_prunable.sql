-- list_prunable: ended jobs of one outcome that are past their retention; a slice of a walk from the oldest end on.
-- Fence: none (reads).
-- Rows: 1 = the last end walked over, how many were, and the ids of those in the queues and of the names asked for; 0 = nothing is left.
-- Clock: statement_timestamp().
WITH walked AS MATERIALIZED (
    SELECT j.id, j.queue, j.name, j.finished_at
    FROM pgjobs_job AS j
    WHERE j.finished_at IS NOT NULL
      AND j.outcome = %(outcome)s::text
      AND j.finished_at >= greatest(
          %(after)s::timestamptz, statement_timestamp() - make_interval(secs => %(window)s::float8)
      )
      AND j.finished_at < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    ORDER BY j.finished_at
    LIMIT %(limit)s::integer
)
SELECT
    max(finished_at)::text,
    count(*),
    coalesce(
        array_agg(id) FILTER (
            WHERE (queue = ANY (%(queues)s::text[])) = %(only)s::boolean
              AND (%(names)s::text[] IS NULL OR name = ANY (%(names)s::text[]))
        ),
        '{}'
    )
FROM walked
HAVING count(*) > 0
