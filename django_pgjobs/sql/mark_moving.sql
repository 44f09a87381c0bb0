-- mark_moving: hold unclaimed jobs that are to move to another database, or, without a token, only judge them.
-- Fence: none (only unclaimed jobs, which the caller has locked; checked again).
-- Rows: one per job: why it stays, null if it moves.
-- Clock: none.
WITH judged AS MATERIALIZED (
    SELECT
        j.id,
        CASE
            WHEN j.sequence IS NOT NULL THEN 'in a sequence'
            WHEN j.parent_id IS NOT NULL OR j.target_id IS NOT NULL OR j.flow & 339 <> 0 OR j.hold = 'blocked' THEN 'part of a flow'
            WHEN j.ending IS NOT NULL THEN 'ending'
            WHEN j.cron_entry IS NOT NULL THEN 'of a cron entry'
            WHEN coalesce(jsonb_typeof(j.options), 'object') <> 'object' THEN 'unreadable options'
            WHEN j.flow & 32 = 32 AND (
                SELECT true
                FROM pgjobs_memo AS m
                WHERE m.job_id = ANY (ARRAY[j.id]) AND (m.kind = 'gather' OR (m.kind = 'event' AND m.finished_at IS NULL))
                LIMIT 1
            ) THEN 'waits for an event, or has gathered'
            -- What goes with a job travels as one JSON value, of 256 MB at most.
            WHEN j.flow & 32 = 32 AND (
                SELECT sum(octet_length(m.result::text)) FROM pgjobs_memo AS m WHERE m.job_id = ANY (ARRAY[j.id])
            ) > 100000000 THEN 'too large'
        END AS stays
    FROM pgjobs_job AS j
    WHERE j.id = ANY (%(ids)s::bigint[])
      AND j.finished_at IS NULL
      AND j.claim_id IS NULL
      AND j.hold IS DISTINCT FROM 'moving'
),
marked AS (
    UPDATE pgjobs_job AS j
    SET hold = 'moving',
        hold_reason = %(words)s,
        options = coalesce(j.options, '{}') || jsonb_build_object(
            'move',
            jsonb_build_object('to', %(target)s::text, 'token', %(token)s::text, 'hold', j.hold, 'reason', j.hold_reason)
        )
    FROM judged
    WHERE j.id = ANY (ARRAY[judged.id]) AND judged.stays IS NULL AND %(token)s::text IS NOT NULL
)
SELECT id, stays FROM judged
