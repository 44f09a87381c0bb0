-- limit_running: count running jobs in the limit that an operator has set for their queue or name: they were registered where there was none.
-- Fence: none (changes only which limits count a job; checked under the row lock).
-- Rows: one per job that counts from now on, up to a bound; a locked one is found the next time.
-- Clock: statement_timestamp().
WITH in_force AS MATERIALIZED (
    SELECT o.kind, o.name
    FROM pgjobs_limit AS o
    WHERE o.kind IN ('queue', 'job') AND (o.until IS NULL OR o.until > statement_timestamp())
),
claimed AS MATERIALIZED (
    SELECT k.claim_id, m.id
    FROM pgjobs_claim AS k
    CROSS JOIN LATERAL unnest(k.job_ids) AS m (id)
    WHERE (SELECT count(*) FROM in_force) > 0
),
uncounted AS MATERIALIZED (
    SELECT j.id
    FROM claimed
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[claimed.id])
    -- Written so that no partial index matches: the row is looked up by its id.
    WHERE j.claim_id = claimed.claim_id
      AND j.limit_key IS NOT DISTINCT FROM NULL
      AND j.finished_at IS NOT DISTINCT FROM NULL
      AND j.ending IS NULL
      AND j.queue <> 'pgjobs'
      AND j.name = ANY (%(names)s::text[]) -- no other is ever admitted here
      AND EXISTS (
          SELECT
          FROM in_force AS o
          WHERE o.kind = 'queue' AND o.name = j.queue OR o.kind = 'job' AND o.name = j.name
      )
    LIMIT %(limit)s::integer
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET limit_key = ''
WHERE j.id = ANY (ARRAY (SELECT id FROM uncounted))
RETURNING j.id
