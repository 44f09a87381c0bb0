-- judge_crons: store whether the arguments of schedules made at run time fit their job, and why not.
-- Fence: none (a schedule that changed since it was read is checked again; so is one that is locked).
-- Rows: one per schedule whose state changed, its name and the reason, empty if it is mended.
-- Clock: statement_timestamp().
WITH judged AS MATERIALIZED (
    SELECT e.name, given.reason, e.broken <> given.reason AS changed
    FROM unnest(%(names)s::text[], %(payloads)s::text[], %(before)s::text[], %(reasons)s::text[])
        AS given (name, payload, before, reason)
    JOIN pgjobs_cron_entry AS e
      ON e.name = given.name AND e.fingerprint = given.before AND e.declared_payload = given.payload::jsonb
    WHERE e.origin = 'row' AND e.job_name = %(job_name)s::text
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
written AS (
    UPDATE pgjobs_cron_entry AS e
    SET fingerprint = %(fingerprint)s::text,
        broken = j.reason,
        next_fire_at = CASE WHEN NOT j.changed THEN e.next_fire_at END,
        check_at = CASE WHEN j.changed THEN statement_timestamp() ELSE e.check_at END
    FROM judged AS j
    WHERE e.name = j.name
)
SELECT j.name, j.reason FROM judged AS j WHERE j.changed
