-- read_gates: lock the gates of some jobs in the order of their ids, and read what they need.
-- Fence: none (changes nothing).
-- Rows: one per gate: how many needed jobs have ended otherwise, whether it is eager, whether it waits for others, and its links as arrays.
-- Clock: none.
SELECT
    g.job_id, g.unmet, g.eager, g.opened_at IS NULL AND g.pending > 0 AS is_closed,
    ARRAY (SELECT l.parent_id FROM pgjobs_link AS l WHERE l.job_id = ANY (ARRAY[g.job_id]) ORDER BY l.parent_id) AS parents,
    ARRAY (SELECT l.rule FROM pgjobs_link AS l WHERE l.job_id = ANY (ARRAY[g.job_id]) ORDER BY l.parent_id) AS rules
FROM unnest(%(ids)s::bigint[]) AS wanted (job_id)
JOIN pgjobs_gate AS g ON g.job_id = ANY (ARRAY[wanted.job_id])
ORDER BY wanted.job_id
FOR NO KEY UPDATE OF g
