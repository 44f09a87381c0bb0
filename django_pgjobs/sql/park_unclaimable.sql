-- park_unclaimable: hold the ready row whose data makes its claim fail, so that it stops no other job.
-- Fence: none (an unclaimed row; checked under the row lock).
-- Rows: 1 = parked; 0 = it is gone, claimed or locked.
-- Clock: none.
UPDATE pgjobs_job AS p
SET hold = 'parked',
    hold_reason = %(reason)s,
    hold_fingerprint = coalesce(
        (
            SELECT k.fingerprint
            FROM unnest(%(names)s::text[], %(fingerprints)s::text[]) AS k (name, fingerprint)
            WHERE k.name = p.name
            LIMIT 1
        ),
        ''
    )
WHERE p.id = (
    SELECT j.id
    FROM pgjobs_job AS j
    WHERE j.id = %(id)s::bigint
      AND j.finished_at IS NULL
      AND j.hold IS NULL
      AND j.claim_id IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING p.id
