-- mark_lost: mark as lost the workers whose jobs were rescued because their leases had expired, unless they still have a lease or beat a moment ago; their next heartbeat clears it.
-- Fence: none (a heartbeat grants no right).
-- Rows: one per worker marked, its name; a locked row waits for the next rescue.
-- Clock: statement_timestamp().
UPDATE pgjobs_heartbeat AS h
SET state = 'lost'
WHERE h.id = ANY (
    ARRAY (
        SELECT silent.id
        FROM pgjobs_heartbeat AS silent
        WHERE silent.id = ANY (
            ARRAY (
                SELECT a.worker
                FROM unnest(%(ids)s::bigint[], %(claim_ids)s::uuid[]) AS taken (id, claim_id)
                JOIN pgjobs_attempt AS a ON a.job_id = taken.id AND a.claim_id = taken.claim_id
                WHERE a.cause = 'lost'
            )
        )
          AND silent.state IN ('running', 'quiet', 'draining')
          AND silent.last_beat_at <= statement_timestamp() - make_interval(secs => %(quiet)s::float8)
          AND NOT EXISTS (
            SELECT FROM pgjobs_claim AS k WHERE k.worker = silent.id AND k.lease_expires_at > statement_timestamp()
        )
        FOR NO KEY UPDATE SKIP LOCKED
    )
)
RETURNING h.name
