-- expire_jobs: end unclaimed jobs that were to start before now and never started, or leave only their callback, or an end that counts in a gate, to a worker; earliest expiry first.
-- Fence: none (only unclaimed jobs; checked under the row lock).
-- Rows: one per job expired: its name, the workers to wake (no priority: admitters), its attempts, whether it has ended, and the latest expiry of all, as text.
-- Clock: statement_timestamp().
WITH due AS MATERIALIZED (
    -- Where its end counts in a gate, a worker writes it.
    SELECT j.id, j.name = ANY (%(without_on_cancel)s::text[]) AND j.flow & 7 = 0 AS ends
    FROM pgjobs_job AS j
    WHERE j.expires_at >= %(after)s::timestamptz
      AND j.expires_at <= statement_timestamp()
      AND j.finished_at IS NULL
      AND j.claim_id IS NULL
      AND j.ending IS NULL
      AND j.hold IS DISTINCT FROM 'moving' -- it expires where it lands
      AND j.attempt = 0 -- workers older than the expiry keep it when they retry
    ORDER BY j.expires_at
    LIMIT %(limit)s::integer
    FOR NO KEY UPDATE SKIP LOCKED
),
expired AS (
    UPDATE pgjobs_job AS j
    SET outcome = CASE WHEN due.ends THEN 'cancelled' END,
        finished_at = CASE WHEN due.ends THEN statement_timestamp() END,
        ending = CASE WHEN NOT due.ends THEN 'cancelled' END,
        run_at = CASE WHEN due.ends THEN j.run_at ELSE least(j.run_at, statement_timestamp()) END,
        ready_at = statement_timestamp(),
        cancel_reason = %(reason)s::text,
        hold = NULL,
        unique_key = CASE WHEN NOT due.ends AND j.key_scope = 'until_started' THEN NULL ELSE j.unique_key END -- its body will not start
    FROM due
    WHERE j.id = ANY (ARRAY[due.id]) AND j.finished_at IS NULL AND j.claim_id IS NULL
    RETURNING
        j.id, j.name, j.queue, j.priority, j.attempt, j.outcome IS NOT NULL AS ended, j.limit_key IS NOT NULL AS limited,
        j.waited, j.expires_at
)
SELECT
    id, name, queue, CASE WHEN NOT ended THEN priority END AS priority, ended AND NOT limited AS silent, attempt, ended,
    (SELECT max(expires_at) FROM expired)::text AS until, CASE WHEN waited AND ended THEN pg_notify('pgjobs_ended', id::text) END
FROM expired
