-- record_crashes: add to the retry histories of jobs that an executor died with them, where they run again under the same claim, uncharged.
-- Fence: none (each note has an id of its own, so a repetition writes nothing twice; it decides nothing).
-- Rows: one per row written.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_attempt (
    job_id, claim_id, number, cause, worker, worker_name, release, started_at, ended_at, duration_seconds, exception, message
)
SELECT
    j.id, c.note, c.number, 'crashed', %(worker)s::uuid, %(worker_name)s, %(release)s,
    statement_timestamp() - make_interval(secs => c.ago + c.seconds), statement_timestamp() - make_interval(secs => c.ago),
    c.seconds, c.exception, c.message
FROM json_to_recordset(%(items)s::json) AS c (
    id bigint, note uuid, number integer, seconds float8, exception text, message text, ago float8
)
CROSS JOIN LATERAL (SELECT id FROM pgjobs_job WHERE id = c.id LIMIT 1) AS j
ON CONFLICT DO NOTHING
RETURNING 1
