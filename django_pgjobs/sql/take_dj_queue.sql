-- take_dj_queue: finish locked jobs in dj-queue, give back the slots that they held there, and note the job that each of them is here.
-- Fence: none (rows of another queue that the caller has locked).
-- Rows: one per job: its id there.
-- Clock: statement_timestamp().
WITH ready AS (
    DELETE FROM dj_queue_ready_executions AS e WHERE e.job_id = ANY (%(ids)s::uuid[]) RETURNING e.job_id
),
scheduled AS (
    DELETE FROM dj_queue_scheduled_executions AS e WHERE e.job_id = ANY (%(ids)s::uuid[])
),
blocked AS (
    DELETE FROM dj_queue_blocked_executions AS e WHERE e.job_id = ANY (%(ids)s::uuid[])
),
taken AS (
    UPDATE dj_queue_jobs AS p
    SET finished_at = statement_timestamp()
    FROM unnest(%(ids)s::uuid[], %(job_ids)s::bigint[]) AS w (id, job_id)
    WHERE p.id = ANY (ARRAY[w.id]) AND p.finished_at IS NULL
    RETURNING p.id, p.concurrency_key, w.job_id
),
slots AS (
    SELECT t.concurrency_key AS key, count(*) AS held
    FROM taken AS t
    JOIN ready ON ready.job_id = t.id
    GROUP BY t.concurrency_key
),
freed AS (
    UPDATE dj_queue_semaphores AS s
    SET value = least(s."limit", s.value + slots.held),
        active_count = s."limit" - least(s."limit", s.value + slots.held)
    FROM slots
    WHERE s.key = slots.key
)
INSERT INTO pgjobs_import (source, source_id, job_id, run)
SELECT 'dj-queue', taken.id::text, taken.job_id, %(run)s::text
FROM taken
RETURNING source_id
