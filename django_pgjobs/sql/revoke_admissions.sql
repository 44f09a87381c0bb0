-- revoke_admissions: hold admitted, unclaimed jobs of paused queues again: an admission that had not seen the pause admitted them. Runs after lock_admission, in its transaction.
-- Fence: none (changes only unclaimed jobs; checked under the row lock).
-- Rows: one per job held again, up to a bound.
-- Clock: statement_timestamp().
WITH paused AS MATERIALIZED (
    SELECT p.name
    FROM pgjobs_queue_state AS p
    WHERE p.kind = 'queue'
      AND (p.until IS NULL OR p.until > statement_timestamp())
      AND current_setting('pgjobs.admits', true) = 'true'
),
unclaimed AS MATERIALIZED (
    SELECT admitted.id
    FROM (
        SELECT j.id, j.queue
        FROM pgjobs_job AS j
        WHERE j.limit_key IS NOT NULL AND j.hold IS NULL AND j.finished_at IS NULL
          AND j.claim_id IS NULL AND j.ending IS NULL
          AND (SELECT count(*) FROM paused) > 0
        -- In the order of the one index that holds these rows and no others.
        ORDER BY j.name, j.limit_key, j.queue
    ) AS admitted
    WHERE admitted.queue IN (SELECT name FROM paused)
    LIMIT %(limit)s::integer
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM unclaimed
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[unclaimed.id])
    -- Written so that no partial index matches: the row is looked up by its id.
    WHERE j.hold IS NOT DISTINCT FROM NULL AND j.claim_id IS NOT DISTINCT FROM NULL
      AND j.finished_at IS NOT DISTINCT FROM NULL AND j.ending IS NULL
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET hold = 'limited'
WHERE j.id = ANY (ARRAY (SELECT id FROM locked))
RETURNING j.id
