-- next_claimable: the job that a claim with limit one would take from these pairs now, for threads or for the event loop. Its row lock ends with the statement.
-- Fence: none (changes nothing).
-- Rows: 1 = its id; 0 = nothing is ready.
-- Clock: statement_timestamp().
SELECT ready.id
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(run_ats)s::timestamptz[], %(ids)s::bigint[],
    %(until_run_ats)s::timestamptz[], %(until_ids)s::bigint[])
    AS pair (queue, priority, run_at, id, until_run_at, until_id),
LATERAL (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.queue = pair.queue
      AND j.priority = pair.priority
      AND (j.run_at, j.id) > (
          CASE
              -- The clock was set back: until it catches up, new jobs would be behind the frontier.
              WHEN pair.run_at > statement_timestamp() THEN statement_timestamp() - interval '5 s'
              ELSE pair.run_at
          END,
          pair.id
      )
      AND (j.run_at, j.id) <= (coalesce(pair.until_run_at, 'infinity'), coalesce(pair.until_id, 0))
      AND j.run_at <= statement_timestamp()
      AND j.finished_at IS NULL
      AND j.hold IS NULL
      AND j.claim_id IS NULL
      AND (j.ending IS NULL AND j.name IN (SELECT unnest(%(async_names)s::text[]))) = %(is_async)s::boolean
    ORDER BY j.run_at, j.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
) AS ready
LIMIT 1
