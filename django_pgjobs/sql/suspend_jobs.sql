-- suspend_jobs: let jobs continue later where they stopped, uncharged, and keep what each waits for, which may be several things side by side; with the failure of a step, if it is tried again.
-- Fence: required.
-- Rows: one per job recorded, with its new run_at, the workers to wake (no priority: admitters), and whether it is due; a missing one was locked, lost, cancelled in the meantime, or recorded before.
-- Clock: statement_timestamp().
WITH suspended AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(%(items)s::json) AS s (
        id bigint, claim_id uuid, seconds float8, memo text, kind text, event text, delay float8, failures integer,
        progressed boolean, besides json, cause text, error text, exception text, message text, chain jsonb, traceback text
    )
),
locked AS MATERIALIZED (
    SELECT suspended.*, j.attempt
    FROM suspended
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[suspended.id])
    WHERE true
      AND j.claim_id = suspended.claim_id -- fence
      AND j.outcome IS NULL -- fence
      AND j.cancel_requested_at IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
waits AS MATERIALIZED (
    SELECT locked.*, w.first, w.name AS wait, w.wait_kind, w.awaited, w.pause, w.failed, w.failure
    FROM locked
    CROSS JOIN LATERAL (
        SELECT true, locked.memo, locked.kind, locked.event, locked.delay, locked.failures, locked.error
        UNION ALL
        SELECT false, b.memo, b.kind, b.event, b.delay, b.failures, b.error
        FROM json_to_recordset(locked.besides) AS b (
            memo text, kind text, event text, delay float8, failures integer, error text
        )
    ) AS w (first, name, wait_kind, awaited, pause, failed, failure)
),
dated AS MATERIALIZED (
    SELECT
        waits.*,
        coalesce(
            -- It sleeps the rest, however often it runs in between.
            (
                SELECT m.wake_at FROM pgjobs_memo AS m
                WHERE m.job_id = waits.id AND m.name = waits.wait AND waits.wait_kind <> 'step'
            ),
            statement_timestamp() + make_interval(secs => waits.pause)
        ) AS wake_at,
        -- The caller has locked the event: it was sent before, or its sender sees the memo.
        (SELECT e.sent_at FROM pgjobs_event AS e WHERE e.name = waits.awaited) IS NOT NULL AS sent
    FROM waits
),
going_on AS MATERIALIZED (
    SELECT
        dated.*,
        min(
            CASE
                -- An operator may have retried a member since the batch ended: ask again, but not at once.
                WHEN dated.sent AND dated.wait_kind = 'gather' THEN statement_timestamp() + interval '1 second'
                WHEN dated.sent THEN statement_timestamp()
                ELSE dated.wake_at
            END
        ) OVER (PARTITION BY dated.id) AS goes_on_at
    FROM dated
),
kept AS (
    INSERT INTO pgjobs_memo AS m (job_id, name, kind, event, failures, error, wake_at, claim_id, created_at)
    SELECT
        id, wait, wait_kind, awaited, failed, coalesce(failure, ''), wake_at, claim_id,
        statement_timestamp() - make_interval(secs => CASE WHEN wait_kind = 'step' THEN coalesce(seconds, 0) ELSE 0 END)
    FROM dated
    ON CONFLICT (job_id, name) DO UPDATE
    SET failures = excluded.failures,
        error = CASE WHEN excluded.failures = m.failures THEN m.error ELSE excluded.error END, -- it has not been tried
        event = excluded.event,
        wake_at = excluded.wake_at,
        claim_id = excluded.claim_id
    WHERE m.finished_at IS NULL
),
recorded AS (
    UPDATE pgjobs_job AS j
    SET claim_id = NULL,
        hold = CASE WHEN j.limit_key IS NOT NULL THEN 'limited' END,
        overdue_at = NULL,
        -- Not charged; one that remembers more than at its claim starts to count again.
        attempt = CASE WHEN going_on.progressed THEN 0 ELSE greatest(j.attempt - 1, 0) END,
        suspect_attempt = NULL,
        run_at = greatest(least(going_on.goes_on_at, j.deadline), statement_timestamp()),
        error = coalesce(going_on.error, j.error),
        worker = %(worker)s::uuid,
        progress = NULL,
        expires_at = NULL, -- it has started
        release_requested_at = NULL,
        flow = j.flow | 32 -- remembers
    FROM going_on
    WHERE j.id = ANY (ARRAY[going_on.id]) AND going_on.first
    RETURNING
        j.id, j.run_at, j.queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority,
        going_on.claim_id, going_on.attempt AS number, going_on.cause, going_on.seconds, going_on.exception,
        going_on.message, going_on.chain, going_on.traceback
),
history AS (
    INSERT INTO pgjobs_attempt (
        job_id, claim_id, number, cause, worker, worker_name, release, started_at, ended_at, duration_seconds,
        exception, message, chain, traceback
    )
    SELECT
        id, claim_id, number, cause, %(worker)s::uuid, %(worker_name)s, %(release)s,
        statement_timestamp() - make_interval(secs => coalesce(seconds, 0)), statement_timestamp(), seconds,
        coalesce(exception, ''), coalesce(message, ''), coalesce(chain, '[]'), coalesce(traceback, '')
    FROM recorded
    WHERE exception IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id, run_at, queue, priority, run_at <= statement_timestamp() AS due FROM recorded
