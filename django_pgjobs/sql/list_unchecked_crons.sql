-- list_unchecked_crons: schedules made at run time whose arguments are not checked against this code of their job.
-- Fence: none (reads).
-- Rows: at most as many as asked for: name, arguments, and the fingerprint they were checked against.
-- Clock: none.
(
    SELECT e.name, e.declared_payload::text, e.fingerprint
    FROM pgjobs_cron_entry AS e
    WHERE e.origin = 'row' AND e.job_name = %(job_name)s::text AND e.fingerprint < %(fingerprint)s::text
    LIMIT %(most)s::bigint
)
UNION ALL
(
    SELECT e.name, e.declared_payload::text, e.fingerprint
    FROM pgjobs_cron_entry AS e
    WHERE e.origin = 'row' AND e.job_name = %(job_name)s::text AND e.fingerprint > %(fingerprint)s::text
    LIMIT %(most)s::bigint
)
