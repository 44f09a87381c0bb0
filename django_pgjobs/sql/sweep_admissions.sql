-- sweep_admissions: forget starts that no window of a rate limit holds any more.
-- Fence: none (rows whose time is over; nobody reads them).
-- Rows: one per row deleted.
-- Clock: statement_timestamp().
DELETE FROM pgjobs_admission AS p
USING (
    SELECT subject, admitted_at
    FROM pgjobs_admission
    WHERE expires_at <= statement_timestamp()
    LIMIT %(limit)s::integer
    FOR UPDATE SKIP LOCKED
) AS old
WHERE p.subject = old.subject AND p.admitted_at = old.admitted_at
RETURNING p.subject
