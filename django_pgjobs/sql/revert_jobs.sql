-- revert_jobs: put unclaimed jobs back where one part of an operator's action found them: ended as they were, or at their former instant, queue and priority.
-- Fence: none (only unclaimed jobs, which the caller has locked and judged).
-- Rows: one per job put back, with the workers to wake (no priority: admitters; no queue: it has ended), whether it may be older than the jobs claimed now, and whether others wait for its end.
-- Clock: statement_timestamp().
UPDATE pgjobs_job AS j
SET run_at = r.run_at,
    queue = r.queue,
    priority = r.priority,
    ending = r.ending,
    ending_attempt = r.ending_attempt,
    max_attempts = r.max_attempts,
    ready_at = CASE WHEN r.outcome IS NULL AND r.hold IS DISTINCT FROM 'parked' THEN statement_timestamp() ELSE r.ready_at END,
    deadline = r.deadline,
    expires_at = r.expires_at,
    overdue_at = r.overdue_at,
    outcome = r.outcome,
    finished_at = r.finished_at,
    error_class = r.error_class,
    unique_key = CASE WHEN r.outcome IS NULL OR r.has_key THEN j.unique_key END,
    cancel_requested_at = r.cancel_requested_at,
    cancel_mode = coalesce(r.cancel_mode, ''),
    cancel_by = coalesce(r.cancel_by, ''),
    cancel_reason = coalesce(r.cancel_reason, ''),
    hold = CASE
        WHEN r.outcome IS NOT NULL OR r.hold = 'parked' THEN r.hold
        -- An admitted job would keep its slot while it waits for its instant, and has no admission in another queue.
        WHEN j.hold IS NULL AND r.ending IS NULL AND j.limit_key IS NOT NULL THEN 'limited'
        ELSE j.hold
    END,
    hold_reason = CASE WHEN r.outcome IS NOT NULL OR r.hold = 'parked' THEN coalesce(r.hold_reason, '') ELSE j.hold_reason END,
    hold_fingerprint = CASE
        WHEN r.outcome IS NOT NULL OR r.hold = 'parked' THEN coalesce(r.hold_fingerprint, '') ELSE j.hold_fingerprint
    END
FROM pgjobs_action_part AS p
CROSS JOIN LATERAL jsonb_to_recordset(p.former) AS r (
    id bigint, run_at timestamptz, queue text, priority smallint, ending text, ending_attempt smallint,
    max_attempts integer, ready_at timestamptz, deadline timestamptz, expires_at timestamptz, overdue_at timestamptz,
    outcome text, finished_at timestamptz, error_class text, hold text, hold_reason text, hold_fingerprint text,
    cancel_requested_at timestamptz, cancel_mode text, cancel_by text, cancel_reason text,
    has_key boolean
)
WHERE p.action_id = %(action)s::bigint
  AND p.part = %(part)s::integer
  AND r.id = ANY (%(ids)s::bigint[])
  AND j.id = ANY (ARRAY[r.id])
  AND j.finished_at IS NULL
  AND j.claim_id IS NULL
RETURNING
    j.id, CASE WHEN j.finished_at IS NULL THEN j.queue END AS queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority,
    -- Otherwise a near scan finds it.
    j.finished_at IS NULL AND j.hold IS NULL AND j.run_at < statement_timestamp() - interval '1 second' AS old,
    j.waited AND j.finished_at IS NOT NULL AS waited
