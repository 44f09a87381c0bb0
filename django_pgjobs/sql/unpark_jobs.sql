-- unpark_jobs: resume parked jobs whose names this code knows, if other code parked them.
-- Fence: none (parked rows are not claimed; the hold is checked under the row lock).
-- Rows: one per job, with its queue and priority.
-- Clock: statement_timestamp().
WITH known AS (
    SELECT name, fingerprint FROM unnest(%(names)s::text[], %(fingerprints)s::text[]) AS k (name, fingerprint)
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    JOIN known ON known.name = j.name
    WHERE j.hold = 'parked'
      AND j.finished_at IS NULL
      AND j.hold_fingerprint <> known.fingerprint
      AND j.hold_fingerprint <> 'adopt' -- an operator held it
    LIMIT %(limit)s::integer
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET hold = CASE WHEN j.limit_key IS NOT NULL AND j.ending IS NULL THEN 'limited' END,
    hold_reason = '',
    hold_fingerprint = '',
    ready_at = statement_timestamp()
FROM locked
WHERE j.id = ANY (ARRAY[locked.id])
RETURNING j.id, j.queue, j.priority
