-- end_atomic: end a job as succeeded inside the transaction of its body, the last write before its COMMIT.
-- Fence: required.
-- Rows: 1 = ended if the transaction commits, and its flow; 0 = lost, or ended before. A row locked for 5 s raises.
-- Clock: statement_timestamp().
WITH before AS MATERIALIZED (
    SELECT
        current_setting('lock_timeout') AS lock_timeout,
        set_config('lock_timeout', '5s', true) AS bounded,
        -- No dead client keeps the row locked.
        set_config('idle_in_transaction_session_timeout', coalesce(%(idle)s::text, current_setting('idle_in_transaction_session_timeout')), true) AS watched
)
UPDATE pgjobs_job AS j
SET outcome = 'succeeded',
    finished_at = statement_timestamp(),
    result = %(result)s::jsonb,
    duration_seconds = %(seconds)s::float8,
    worker = (SELECT k.worker FROM pgjobs_claim AS k WHERE k.claim_id = %(claim_id)s::uuid LIMIT 1)
FROM before
WHERE before.bounded IS NOT NULL AND before.watched IS NOT NULL
  AND j.id = ANY (ARRAY[%(id)s::bigint])
  AND j.claim_id = %(claim_id)s::uuid -- fence
  AND j.outcome IS NULL -- fence
RETURNING
    j.flow,
    -- Constraints that are checked at the COMMIT wait for locks as long as the project allows.
    set_config('lock_timeout', before.lock_timeout, true),
    CASE WHEN j.waited THEN pg_notify('pgjobs_ended', j.id::text) END
