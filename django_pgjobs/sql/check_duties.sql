-- check_duties: what there is to do for the duties of workers, and if asked for the leader's, by one probe of an index each.
-- Fence: none (reads).
-- Rows: 1 = whether a lease runs out within some seconds, pauses hold jobs, a gate is due, limits hold jobs, there is a pause or an operator's limit, no worker leads; and for the leader whether a job has expired, a cron entry is to be fired or planned within some seconds, there is any entry.
-- Clock: statement_timestamp().
SELECT
    EXISTS (
        SELECT FROM pgjobs_claim AS k
        -- Its index; it is never later than the lease.
        WHERE k.check_at <= statement_timestamp() + make_interval(secs => %(lease)s::float8)
          AND k.lease_expires_at <= statement_timestamp() + make_interval(secs => %(lease)s::float8)
    ),
    -- In the order of the index that is meant: a plan made while the table was empty may take another, and read all of it.
    (SELECT true FROM pgjobs_job AS j WHERE j.hold = 'paused' ORDER BY j.name LIMIT 1) IS NOT NULL,
    (SELECT true FROM pgjobs_gate AS g WHERE g.due ORDER BY g.job_id LIMIT 1) IS NOT NULL,
    (SELECT true FROM pgjobs_job AS j WHERE j.hold = 'limited' ORDER BY j.queue, j.name, j.limit_key LIMIT 1) IS NOT NULL,
    EXISTS (SELECT FROM pgjobs_queue_state AS s WHERE s.until IS NULL OR s.until > statement_timestamp())
    OR EXISTS (SELECT FROM pgjobs_limit AS o WHERE o.until IS NULL OR o.until > statement_timestamp()),
    NOT EXISTS (SELECT FROM pgjobs_leader_term AS t WHERE t.id = 1 AND t.expires_at > statement_timestamp()),
    %(leads)s::boolean AND (
        SELECT true
        FROM pgjobs_job AS j
        WHERE j.expires_at >= %(after)s::timestamptz
          AND j.expires_at <= statement_timestamp()
          AND j.finished_at IS NULL
          AND j.claim_id IS NULL
          AND j.ending IS NULL
          AND j.attempt = 0
        ORDER BY j.expires_at
        LIMIT 1
    ) IS NOT NULL,
    %(leads)s::boolean AND coalesce(
        (
            SELECT true
            FROM pgjobs_cron_entry AS e
            WHERE e.next_fire_at <= statement_timestamp() + make_interval(secs => %(fire)s::float8)
            ORDER BY e.next_fire_at
            LIMIT 1
        ),
        (
            SELECT true
            FROM pgjobs_cron_entry AS e
            WHERE e.next_fire_at IS NULL
              AND e.broken = ''
              -- Its next fire is computed once its job has ended.
              AND (
                  e.overlap <> 'after_completion'
                  OR (SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = e.name AND j.finished_at IS NULL LIMIT 1) IS NULL
              )
              AND e.check_at <= statement_timestamp() + make_interval(secs => %(fire)s::float8)
            ORDER BY e.check_at
            LIMIT 1
        ),
        false
    ),
    %(leads)s::boolean AND EXISTS (SELECT FROM pgjobs_cron_entry)
