-- extend_action: add the jobs of the next batch to an operator's action, in the transaction that changes them.
-- Fence: none (a record decides nothing).
-- Rows: none.
-- Clock: none.
WITH extended AS (
    UPDATE pgjobs_action
    SET changed = changed + %(changed)s::integer
    WHERE id = %(id)s::bigint
    RETURNING id
)
INSERT INTO pgjobs_action_part (action_id, part, first_id, last_id, job_ids, former)
SELECT extended.id, %(part)s::integer, given.ids[1], given.ids[cardinality(given.ids)], given.ids, %(former)s::jsonb
FROM extended
CROSS JOIN (SELECT %(ids)s::bigint[] AS ids) AS given
WHERE cardinality(given.ids) > 0
