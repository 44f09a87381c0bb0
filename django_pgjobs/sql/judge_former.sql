-- judge_former: which jobs of one part of an operator's action still stand where it has put them, and why others do not.
-- Fence: none (reads; the caller that reverts them has locked them).
-- Rows: one per job: empty, or started, ended, unknown, or changed since; and the flow of one that is to end again.
-- Clock: none.
SELECT
    r.id,
    CASE
        WHEN j.id IS NULL THEN 'unknown'
        WHEN j.claimed_at IS DISTINCT FROM r.claimed_at OR j.claim_id IS NOT NULL THEN 'started'
        WHEN j.finished_at IS NOT NULL THEN 'ended'
        WHEN
            j.run_at <> r.left_run_at
            OR j.queue <> r.left_queue
            OR j.priority <> r.left_priority
            OR j.ending IS DISTINCT FROM r.left_ending
            OR (j.hold = 'parked' AND r.left_hold IS DISTINCT FROM 'parked')
        THEN 'changed'
        ELSE ''
    END AS refusal,
    CASE WHEN r.outcome IS NOT NULL THEN j.flow END AS flow
FROM pgjobs_action_part AS p
CROSS JOIN LATERAL jsonb_to_recordset(p.former) AS r (
    id bigint, claimed_at timestamptz, outcome text, left_run_at timestamptz, left_queue text, left_priority smallint,
    left_ending text, left_hold text
)
LEFT JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[r.id])
WHERE p.action_id = %(action)s::bigint AND p.part = %(part)s::integer
