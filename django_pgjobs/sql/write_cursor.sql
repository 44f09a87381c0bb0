-- write_cursor: keep how far a running job has come in the rows that it goes through, with its progress; in an atomic batch the last write before its COMMIT.
-- Fence: required.
-- Rows: 1 = kept, if the transaction commits; 0 = lost. A row locked for 5 s raises.
-- Clock: none.
WITH before AS MATERIALIZED (
    SELECT
        current_setting('lock_timeout') AS lock_timeout,
        set_config('lock_timeout', '5s', true) AS bounded,
        -- No dead client keeps the row locked.
        set_config('idle_in_transaction_session_timeout', coalesce(%(idle)s::text, current_setting('idle_in_transaction_session_timeout')), true) AS watched
)
UPDATE pgjobs_job AS j
SET options = coalesce(j.options, '{}') || jsonb_build_object(
        'each', coalesce(j.options -> 'each', '{}') || jsonb_build_object(%(name)s::text, %(cursor)s::jsonb)
    ),
    progress = %(progress)s::jsonb,
    flow = j.flow | 32 -- remembers
FROM before
WHERE before.bounded IS NOT NULL AND before.watched IS NOT NULL
  AND j.id = ANY (ARRAY[%(id)s::bigint])
  AND j.claim_id = %(claim_id)s::uuid -- fence
  AND j.outcome IS NULL -- fence
RETURNING
    -- Constraints that are checked at the COMMIT wait for locks as long as the project allows.
    set_config('lock_timeout', before.lock_timeout, true)
