-- add_gates: insert the gates of new jobs that wait, and the links from what they need.
-- Fence: none (creates rows that no one else sees yet).
-- Rows: none.
-- Clock: none.
WITH gates AS (
    INSERT INTO pgjobs_gate (job_id, pending, total, succeeded, abandoned, cancelled, unmet, hands, eager, fail_fast)
    SELECT job_id, pending, total, succeeded, abandoned, cancelled, unmet, hands, eager, fail_fast
    FROM json_to_recordset(%(gates)s::json) AS g (
        job_id bigint, pending bigint, total bigint, succeeded bigint, abandoned bigint, cancelled bigint, unmet bigint,
        hands smallint, eager boolean, fail_fast boolean
    )
)
INSERT INTO pgjobs_link (parent_id, job_id, rule)
SELECT parent_id, job_id, rule
FROM unnest(%(parents)s::bigint[], %(jobs)s::bigint[], %(rules)s::text[]) AS l (parent_id, job_id, rule)
