-- retry_jobs: make abandoned, cancelled and parked jobs ready again; numbers of attempts go on, so none repeats.
-- Fence: none (only jobs nobody has claimed; compared under the row lock).
-- Rows: one per job made ready.
-- Clock: statement_timestamp().
WITH held AS MATERIALIZED (
    SELECT id FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND (outcome IN ('abandoned', 'cancelled') OR hold = 'parked')
    ORDER BY id
    FOR NO KEY UPDATE
),
retried AS (
    UPDATE pgjobs_job AS j
    SET max_attempts = CASE
            WHEN j.outcome IS NULL THEN j.max_attempts
            ELSE j.attempt + coalesce(
                (
                    SELECT d.attempts
                    FROM unnest(%(names)s::text[], %(attempts)s::integer[]) AS d (name, attempts)
                    WHERE d.name = j.name
                    LIMIT 1
                ),
                %(default_attempts)s::integer
            )
        END,
        ending = CASE WHEN j.outcome IS NULL THEN j.ending END,
        ending_attempt = CASE WHEN j.outcome IS NULL THEN j.ending_attempt ELSE 0 END,
        outcome = NULL, finished_at = NULL, claim_id = NULL, deadline_at = NULL, result = NULL, progress = NULL,
        cancel_requested_at = NULL, release_requested_at = NULL, cancel_mode = '', cancel_by = '', cancel_reason = '',
        hold = NULL, hold_reason = '', hold_fingerprint = '', run_at = statement_timestamp()
    FROM held
    WHERE j.id = held.id AND (j.outcome IN ('abandoned', 'cancelled') OR j.hold = 'parked')
    RETURNING j.id, j.queue, j.priority
)
SELECT id, queue, priority, pg_notify('pgjobs', priority::text || ':' || queue) FROM retried
