-- pause: pause queues, or jobs by their names; admitted jobs of the queues free their slots.
-- Fence: none (changes only unclaimed jobs; checked under the row lock).
-- Rows: one per name, with its pause as stored; 0 = the pause would be over already.
-- Clock: statement_timestamp().
WITH until AS (
    SELECT coalesce(
        %(until)s::timestamptz, statement_timestamp() + make_interval(secs => %(seconds)s::float8)
    ) AS instant
),
admitted AS MATERIALIZED (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE %(kind)s::text = 'queue'
      AND j.queue = ANY (%(names)s::text[])
      AND j.limit_key IS NOT NULL
      AND j.hold IS NULL
      AND j.finished_at IS NULL
      AND j.claim_id IS NULL
      AND j.ending IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
),
revoked AS (
    UPDATE pgjobs_job AS j
    SET hold = 'limited'
    FROM admitted
    WHERE j.id = ANY (ARRAY[admitted.id])
)
INSERT INTO pgjobs_queue_state AS s (kind, name, paused_at, paused_by, reason, until)
SELECT %(kind)s::text, chosen.name, statement_timestamp(), %(by)s::text, %(reason)s::text, until.instant
FROM unnest(%(names)s::text[]) AS chosen (name), until
WHERE until.instant IS NULL OR until.instant > statement_timestamp()
ON CONFLICT (kind, name) DO UPDATE
SET paused_at = CASE WHEN s.until <= statement_timestamp() THEN excluded.paused_at ELSE s.paused_at END,
    paused_by = excluded.paused_by,
    reason = excluded.reason,
    until = excluded.until
RETURNING s.id, s.kind, s.name, s.paused_at, s.paused_by, s.reason, s.until
