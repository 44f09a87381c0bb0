-- lock_turns: keep others from registering into the sequences of some jobs, and from ending their jobs, until the transaction ends; in the order of the locks.
-- Fence: none (locks no row).
-- Rows: one per job that is in a sequence: its id, the sequence, and the isolation level of the transaction. A lock held for longer than asked raises.
-- Clock: none.
WITH found AS MATERIALIZED (
    SELECT j.id, j.sequence, hashtext(j.sequence) & 1023 AS bucket
    FROM unnest(%(ids)s::bigint[]) AS e (id)
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[e.id])
    -- Evaluated once, before the first row.
    WHERE (SELECT set_config('lock_timeout', coalesce(%(lock_timeout)s::text, current_setting('lock_timeout')), true)) IS NOT NULL
      AND j.sequence IS NOT NULL
),
locked AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(%(class)s::integer, s.bucket)) AS n
    FROM (SELECT DISTINCT bucket FROM found ORDER BY bucket) AS s
)
SELECT found.id, found.sequence, current_setting('transaction_isolation')
FROM found
CROSS JOIN locked
WHERE locked.n > 0
