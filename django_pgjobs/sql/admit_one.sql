-- admit_one: admit one job that a limit holds, regardless of its limits; for tests, which run one job at a time.
-- Fence: none (a held job, which no worker has claimed).
-- Rows: 1 = it is ready; 0 = no limit held it.
-- Clock: statement_timestamp().
UPDATE pgjobs_job AS j
SET hold = NULL, ready_at = statement_timestamp()
WHERE j.id = %(id)s::bigint AND j.hold = 'limited'
RETURNING j.id
