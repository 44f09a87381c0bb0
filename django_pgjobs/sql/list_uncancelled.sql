-- list_uncancelled: of the next waiting gates, find batches that were cancelled, or have failed fast, while members go on that nobody has asked to stop.
-- Fence: none (reads).
-- Rows: one per gate looked at: its job, and how, by whom and why its members are to be cancelled, null unless they are.
-- Clock: statement_timestamp().
SELECT g.job_id, batch.mode, batch.by, batch.reason
FROM (
    SELECT w.job_id, w.eager, w.fail_fast, w.abandoned
    FROM pgjobs_gate AS w
    WHERE w.opened_at IS NULL AND w.job_id > %(after)s::bigint
    ORDER BY w.job_id
    LIMIT %(limit)s::integer
) AS g
LEFT JOIN LATERAL (
    SELECT
        coalesce(nullif(j.cancel_mode, ''), 'ask') AS mode,
        CASE WHEN j.cancel_requested_at IS NULL THEN 'pgjobs:fail_fast' ELSE j.cancel_by END AS by,
        CASE WHEN j.cancel_requested_at IS NULL THEN 'A member was abandoned.' ELSE j.cancel_reason END AS reason
    FROM pgjobs_job AS j
    WHERE j.id = ANY (ARRAY[g.job_id])
      AND NOT g.eager
      AND j.finished_at IS NULL
      AND (
          j.cancel_requested_at < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
          OR (j.cancel_requested_at IS NULL AND g.fail_fast AND g.abandoned > 0)
      )
      -- Not EXISTS, which the planner may answer with a hash of all jobs.
      AND (
          SELECT true
          FROM pgjobs_job AS m
          WHERE m.parent_id = ANY (ARRAY[j.id])
            AND m.parent_id IS NOT NULL
            AND m.finished_at IS NULL
            AND m.cancel_requested_at IS NULL
          LIMIT 1
      )
    LIMIT 1
) AS batch ON true
