-- read_former: where jobs stand that an operator moves, as his record keeps it.
-- Fence: none (reads rows that the caller has locked).
-- Rows: one per job: the columns that a retry or a move changes, without empty ones, as JSON.
-- Clock: none.
SELECT
    j.id,
    jsonb_strip_nulls(
        jsonb_build_object(
            'run_at', j.run_at, 'queue', j.queue, 'priority', j.priority, 'ending', j.ending,
            'ending_attempt', j.ending_attempt, 'max_attempts', j.max_attempts, 'claimed_at', j.claimed_at,
            'ready_at', j.ready_at, 'deadline', j.deadline, 'expires_at', j.expires_at, 'overdue_at', j.overdue_at,
            'outcome', j.outcome, 'finished_at', j.finished_at, 'error_class', j.error_class, 'hold', j.hold,
            'hold_reason', nullif(j.hold_reason, ''), 'hold_fingerprint', nullif(j.hold_fingerprint, ''),
            'cancel_requested_at', j.cancel_requested_at, 'cancel_mode', nullif(j.cancel_mode, ''),
            'cancel_by', nullif(j.cancel_by, ''), 'cancel_reason', nullif(j.cancel_reason, ''),
            'has_key', nullif(j.unique_key IS NOT NULL, false)
        )
    )::text AS former
FROM pgjobs_job AS j
WHERE j.id = ANY (%(ids)s::bigint[])
