-- pass_over: let sequences continue although jobs before some of theirs were abandoned.
-- Fence: none (only ended jobs, under their locks; the caller has locked the sequences by an earlier statement).
-- Rows: one per job passed over; a locked one is left.
-- Clock: none.
WITH passed AS MATERIALIZED (
    SELECT j.id
    FROM unnest(%(ids)s::bigint[]) AS w (id)
    JOIN pgjobs_job AS head ON head.id = ANY (ARRAY[w.id])
    JOIN pgjobs_job AS j ON j.sequence = head.sequence AND j.id < head.id
    WHERE j.sequence IS NOT NULL AND j.hold IS NULL AND j.outcome = 'abandoned' AND j.flow & 128 = 0
      AND (j.finished_at IS NULL OR (j.outcome = 'abandoned' AND j.flow & 128 = 0))
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE pgjobs_job AS j
SET flow = j.flow | 128
FROM passed
WHERE j.id = ANY (ARRAY[passed.id]) AND j.outcome = 'abandoned'
RETURNING j.id
