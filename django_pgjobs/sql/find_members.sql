-- find_members: find the members of a batch that have, or have had, these keys, in the queue or under the name of the call, in any state; but not those that a newer job has replaced. One index probe per key, regardless of the statistics.
-- Fence: none (reads).
-- Rows: one per key that a member has had: its position in the input, the two oldest such members, and whether the first has started, ended or moved to another queue.
-- Clock: none.
WITH wanted AS MATERIALIZED (
    SELECT queue, name, key, position
    FROM unnest(%(queues)s::text[], %(names)s::text[], %(keys)s::text[]) WITH ORDINALITY AS w (queue, name, key, position)
)
SELECT wanted.position, array_agg(had.id ORDER BY had.id), (array_agg(had.started ORDER BY had.id))[1]
FROM wanted
CROSS JOIN LATERAL (
    SELECT j.id, j.finished_at IS NOT NULL OR j.claim_id IS NOT NULL OR j.attempt > 0 OR j.ending IS NOT NULL OR j.queue <> wanted.queue AS started
    FROM pgjobs_job AS j
    -- Equal, in words that only one index can order by: another seems as good where statistics are old, and would read
    -- all members for each key.
    WHERE (j.parent_id, j.key) >= (%(id)s::bigint, wanted.key)
      AND (j.parent_id, j.key) <= (%(id)s::bigint, wanted.key)
      AND j.parent_id IS NOT NULL
      AND j.key IS NOT NULL
      AND (j.queue = wanted.queue OR j.name = wanted.name)
      AND j.cancel_by <> 'pgjobs:not_needed'
    ORDER BY j.parent_id, j.key, j.id
    LIMIT 2
) AS had
GROUP BY wanted.position
