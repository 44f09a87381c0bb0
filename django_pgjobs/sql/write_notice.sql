-- write_notice: let notices reach further, and register the job that delivers this one, if there is one: both or neither.
-- Fence: none (compare-and-set on how far notices reached and when the last was: the second of two leaders matches no row).
-- Rows: 1 = written, with the id of the delivery, null without one; 0 = another was first.
-- Clock: statement_timestamp().
WITH picked AS MATERIALIZED (
    SELECT n.id
    FROM pgjobs_notice AS n
    WHERE n.id = 1
      AND n.finished_at = %(finished_at)s::timestamptz
      AND n.notified_at IS NOT DISTINCT FROM %(notified_at)s::timestamptz
    FOR NO KEY UPDATE OF n
),
registered AS (
    INSERT INTO pgjobs_job (name, queue, priority, max_attempts, timeout_seconds, payload, run_at)
    SELECT
        %(name)s::text, %(queue)s::text, %(priority)s::smallint, %(max_attempts)s::integer, %(timeout)s::float8,
        %(payload)s::jsonb, statement_timestamp()
    FROM picked
    WHERE %(payload)s::jsonb IS NOT NULL
    RETURNING
        id,
        CASE WHEN %(notify)s::boolean THEN pg_notify('pgjobs', priority::text || ':' || queue) END AS notified
),
written AS (
    UPDATE pgjobs_notice AS n
    SET finished_at = %(until)s::timestamptz,
        notified_at = CASE WHEN EXISTS (SELECT FROM registered) THEN statement_timestamp() ELSE n.notified_at END,
        job_id = coalesce((SELECT id FROM registered), n.job_id),
        problems = %(problems)s::jsonb
    WHERE n.id = ANY (ARRAY (SELECT id FROM picked))
    RETURNING n.id
)
SELECT r.id, r.notified FROM written LEFT JOIN registered AS r ON true
