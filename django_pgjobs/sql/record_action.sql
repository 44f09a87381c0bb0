-- record_action: insert the record of an operator's action and the jobs it changed, with where they stood if it can be undone, in the transaction that changes them.
-- Fence: none (a record decides nothing).
-- Rows: 1 = its id.
-- Clock: none.
WITH recorded AS (
    INSERT INTO pgjobs_action (verb, mode, via, acted_by, reason, asked, kind, subject, changed)
    VALUES (
        %(verb)s::text, %(mode)s::text, %(via)s::text, %(by)s::text, %(reason)s::text, %(asked)s::text, %(kind)s::text,
        %(subject)s::text, %(changed)s::integer
    )
    RETURNING id
),
part AS (
    INSERT INTO pgjobs_action_part (action_id, part, first_id, last_id, job_ids, former)
    SELECT recorded.id, 0, given.ids[1], given.ids[cardinality(given.ids)], given.ids, %(former)s::jsonb
    FROM recorded
    CROSS JOIN (SELECT %(ids)s::bigint[] AS ids) AS given
    WHERE cardinality(given.ids) > 0
)
SELECT id FROM recorded
