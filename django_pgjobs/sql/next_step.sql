-- next_step: turn the rows of jobs into their next steps, each with its own attempts, keep the steps that have finished, and put aside what they remember.
-- Fence: required.
-- Rows: one per job recorded, with its new run_at, the workers to wake (no priority: admitters), whether it is due, and whether it is to be abandoned because its key is taken in the queue of the step; a missing one was locked, lost, cancelled in the meantime, or recorded before.
-- Clock: statement_timestamp().
WITH stepped AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS s (
        id bigint, claim_id uuid, seconds float8, name text, payload jsonb, queue text, priority smallint,
        max_attempts integer, timeout float8, limit_key text, options jsonb, run_at timestamptz, delay float8
    )
),
locked AS MATERIALIZED (
    SELECT
        stepped.*, j.name AS old_name, j.payload AS old_payload, j.queue AS old_queue, j.attempt AS old_attempt,
        j.flow AS old_flow, j.unique_key
    FROM stepped
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[stepped.id])
    WHERE true
      AND j.claim_id = stepped.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND j.cancel_requested_at IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT
        locked.*,
        locked.unique_key IS NOT NULL
        AND locked.queue <> locked.old_queue
        AND (
            -- Not EXISTS, which the planner may answer with a hash of all keys.
            SELECT true
            FROM pgjobs_job AS rival
            WHERE rival.queue = locked.queue
              AND rival.unique_key = locked.unique_key
              AND rival.unique_key IS NOT NULL
              AND rival.finished_at IS NULL
              AND rival.id <> locked.id
            LIMIT 1
        ) IS NOT NULL AS taken
    FROM locked
),
recorded AS (
    UPDATE pgjobs_job AS j
    SET name = judged.name,
        payload = judged.payload,
        queue = judged.queue,
        priority = coalesce(judged.priority, j.priority),
        max_attempts = judged.max_attempts,
        timeout_seconds = judged.timeout,
        limit_key = judged.limit_key,
        options = judged.options,
        attempt = 0,
        suspect_attempt = NULL,
        claim_id = NULL,
        hold = CASE WHEN judged.limit_key IS NOT NULL THEN 'limited' END,
        overdue_at = NULL,
        run_at = coalesce(judged.run_at, statement_timestamp()) + make_interval(secs => coalesce(judged.delay, 0)),
        error = '',
        duration_seconds = NULL,
        worker = %(worker)s::uuid,
        progress = NULL,
        expires_at = NULL, -- it has started
        release_requested_at = NULL,
        flow = j.flow | 8 -- has steps
    FROM judged
    -- Evaluated once, before the first row: another session may be about to commit the key in the queue of the step.
    WHERE (SELECT set_config('lock_timeout', coalesce(%(lock_timeout)s::text, current_setting('lock_timeout')), true)) IS NOT NULL
      AND j.id = ANY (ARRAY[judged.id])
      AND NOT judged.taken
    RETURNING
        j.id, j.run_at, j.queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority,
        judged.claim_id, judged.old_name, judged.old_payload, judged.old_queue, judged.old_attempt, judged.old_flow,
        judged.seconds
),
kept AS (
    INSERT INTO pgjobs_step (
        job_id, claim_id, name, queue, payload, attempt, worker, worker_name, finished_at, duration_seconds
    )
    SELECT
        id, claim_id, old_name, old_queue, old_payload, old_attempt, %(worker)s::uuid, %(worker_name)s,
        statement_timestamp(), seconds
    FROM recorded
),
renamed AS (
    -- The memos of a step are not those that the next one asks for under the same name. No name given holds U+00A0.
    UPDATE pgjobs_memo AS m
    SET name = m.name || U&'\00A0@' || m.id
    FROM recorded
    WHERE recorded.old_flow <> 0
      AND m.job_id = ANY (ARRAY[recorded.id])
      AND right(m.name, length(m.id::text) + 2) <> U&'\00A0@' || m.id
),
bounds AS MATERIALIZED (
    -- This sees the steps before the one that is kept now.
    SELECT
        recorded.id AS job_id,
        (SELECT s.id FROM pgjobs_step AS s WHERE s.job_id = recorded.id ORDER BY s.id LIMIT 1) AS first,
        (
            SELECT s.id FROM pgjobs_step AS s WHERE s.job_id = recorded.id ORDER BY s.id DESC
            OFFSET %(most)s::integer - 2 LIMIT 1
        ) AS oldest
    FROM recorded
    WHERE recorded.old_flow <> 0
),
surplus AS (
    DELETE FROM pgjobs_step AS s
    USING bounds
    WHERE s.job_id = ANY (ARRAY[bounds.job_id]) AND s.id > bounds.first AND s.id < bounds.oldest
),
refused AS (
    -- No other job of a queue may have its key: a worker ends this one, callback included.
    UPDATE pgjobs_job AS j
    SET claim_id = NULL,
        ending = 'abandoned',
        overdue_at = NULL,
        run_at = statement_timestamp(),
        error = 'DuplicateJob: The next step, ' || judged.name || ', cannot enter queue ' || judged.queue
            || ': another job there has the key ' || judged.unique_key || '.',
        duration_seconds = judged.seconds,
        worker = %(worker)s::uuid,
        progress = NULL,
        expires_at = NULL,
        release_requested_at = NULL
    FROM judged
    WHERE j.id = ANY (ARRAY[judged.id]) AND judged.taken
    RETURNING j.id, j.run_at, j.queue, j.priority
)
SELECT id, run_at, queue, priority, run_at <= statement_timestamp() AS due, false AS refused FROM recorded
UNION ALL
SELECT id, run_at, queue, priority, true, true FROM refused
