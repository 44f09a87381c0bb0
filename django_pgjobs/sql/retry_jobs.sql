-- retry_jobs: make abandoned, cancelled and parked jobs ready again, unless their key is taken; attempt numbers continue, so none repeats.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job made ready, with the workers to wake (no priority: admitters), and one per job left alone because its key is taken.
-- Clock: statement_timestamp().
WITH locked AS MATERIALIZED (
    SELECT
        id, queue, outcome IS NOT NULL AS ended,
        -- With the scope until_started, a job that has started once does not take its key again.
        CASE WHEN outcome IS NOT NULL AND key_scope = 'until_finished' THEN key ELSE unique_key END AS wanted
    FROM pgjobs_job
    WHERE id = ANY (%(ids)s::bigint[]) AND (outcome IN ('abandoned', 'cancelled') OR hold = 'parked')
    ORDER BY id
    FOR NO KEY UPDATE
),
judged AS MATERIALIZED (
    SELECT
        locked.id, locked.wanted,
        locked.wanted IS NULL
        OR (
            row_number() OVER (PARTITION BY locked.queue, locked.wanted ORDER BY locked.ended, locked.id) = 1
            AND (
                -- Not EXISTS, which the planner may answer with a hash of all keys.
                SELECT true
                FROM pgjobs_job AS rival
                WHERE rival.queue = locked.queue
                  AND rival.unique_key = locked.wanted
                  AND rival.unique_key IS NOT NULL
                  AND rival.finished_at IS NULL
                  AND rival.id <> locked.id
                LIMIT 1
            ) IS NULL
        ) AS free
    FROM locked
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
        outcome = NULL, finished_at = NULL, error_class = NULL, claim_id = NULL, overdue_at = NULL, result = NULL, progress = NULL,
        cancel_requested_at = NULL, release_requested_at = NULL, cancel_mode = '', cancel_by = '', cancel_reason = '',
        hold = CASE
            WHEN j.limit_key IS NOT NULL AND (j.outcome IS NOT NULL OR j.ending IS NULL) THEN 'limited'
        END,
        flow = j.flow & ~256, -- is not being undone
        hold_reason = '', hold_fingerprint = '', run_at = statement_timestamp(),
        -- An operator who retries a job after its deadline or its expiry wants it to run.
        deadline = CASE WHEN j.deadline > statement_timestamp() THEN j.deadline END,
        expires_at = CASE WHEN j.attempt = 0 AND j.expires_at > statement_timestamp() THEN j.expires_at END, -- null once it has started
        unique_key = CASE WHEN j.outcome IS NOT NULL AND j.key_scope = 'until_finished' THEN j.key ELSE j.unique_key END
    WHERE j.id = ANY (ARRAY (SELECT id FROM judged WHERE free)) AND (j.outcome IN ('abandoned', 'cancelled') OR j.hold = 'parked')
    RETURNING j.id, j.queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority, j.flow, j.name, j.target_id
),
undoing AS (
    -- It is to be undone again, even without the row that does so.
    UPDATE pgjobs_job AS j
    SET flow = j.flow | 256
    FROM retried
    WHERE retried.name = 'pgjobs.undo' AND j.id = ANY (ARRAY[retried.target_id]) AND j.outcome IN ('abandoned', 'cancelled')
),
removed AS (
    -- Failed steps are tried again; those that succeeded are remembered.
    DELETE FROM pgjobs_memo AS m
    USING retried
    WHERE retried.flow <> 0 AND m.job_id = ANY (ARRAY[retried.id]) AND m.error <> '' AND m.kind <> 'gather'
),
gathered AS (
    -- It runs those again that failed.
    UPDATE pgjobs_memo AS m
    SET finished_at = NULL, error = ''
    FROM retried
    WHERE retried.flow <> 0 AND m.job_id = ANY (ARRAY[retried.id]) AND m.error <> '' AND m.kind = 'gather'
)
SELECT id, false AS taken, queue, priority, false AS old FROM retried
UNION ALL
SELECT id, true, NULL, NULL, NULL FROM judged WHERE NOT free
