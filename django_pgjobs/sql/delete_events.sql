-- delete_events: delete events whose time is over and for which no unfinished job waits, from the walk's position on.
-- Fence: none (an event belongs to no attempt; a wait whose event is gone times out).
-- Rows: 1 = how many were looked at, and when the last of them became known; locked rows wait for the next walk.
-- Clock: statement_timestamp().
WITH over AS MATERIALIZED (
    SELECT e.name, e.created_at
    FROM pgjobs_event AS e
    WHERE e.created_at <= statement_timestamp() - make_interval(secs => %(seconds)s::float8)
      AND e.created_at >= %(after)s::timestamptz
    ORDER BY e.created_at
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgjobs_event AS e
    USING over
    WHERE e.name = ANY (ARRAY[over.name])
      AND coalesce(e.sent_at, e.created_at) <= statement_timestamp() - make_interval(secs => %(seconds)s::float8)
      AND (
          -- Not EXISTS, which the planner may answer with a hash of all memos.
          SELECT true
          FROM pgjobs_memo AS m
          JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[m.job_id])
          WHERE m.kind = ANY (ARRAY['event', 'gather'])
            AND m.event = over.name
            AND m.finished_at IS NULL
            AND j.finished_at IS NULL
          LIMIT 1
      ) IS NULL
)
SELECT count(*)::integer, max(created_at)::text FROM over
