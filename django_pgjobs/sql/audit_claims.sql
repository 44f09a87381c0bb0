-- audit_claims: write a ledger row for running jobs that have none, so that rescue finds them; a slice of the scan.
-- Fence: none (touches no job; one statement writes claim and ledger row, so no claim is seen half-written).
-- Rows: 1 = the last job scanned, how many were, and the ids that got a ledger row; 0 = no more jobs.
-- Clock: statement_timestamp().
WITH scanned AS MATERIALIZED (
    SELECT j.queue, j.priority, j.run_at, j.id, j.claim_id
    FROM pgjobs_job AS j
    WHERE j.finished_at IS NULL
      AND j.hold IS NULL
      AND (j.queue, j.priority, j.run_at, j.id)
        > (%(queue)s::text, %(priority)s::smallint, %(run_at)s::timestamptz, %(after_id)s::bigint)
    ORDER BY j.queue, j.priority, j.run_at, j.id
    LIMIT %(limit)s::integer
),
stranded AS MATERIALIZED (
    SELECT
        scanned.id, scanned.claim_id,
        coalesce((SELECT max(k.part) + 1 FROM pgjobs_claim AS k WHERE k.claim_id = scanned.claim_id), 0) AS first_part
    FROM scanned
    WHERE scanned.claim_id IS NOT NULL
      AND NOT EXISTS (
        SELECT FROM pgjobs_claim AS k WHERE k.claim_id = scanned.claim_id AND scanned.id = ANY (k.job_ids)
      )
),
numbered AS (
    SELECT id, claim_id, first_part + (row_number() OVER (PARTITION BY claim_id) - 1) / 200 AS part FROM stranded
),
recorded AS (
    INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids)
    SELECT
        claim_id, part::smallint, '00000000-0000-0000-0000-000000000000'::uuid,
        statement_timestamp() + make_interval(secs => %(lease)s::float8),
        statement_timestamp() + make_interval(secs => %(lease)s::float8),
        array_agg(id)
    FROM numbered
    GROUP BY claim_id, part
    ON CONFLICT DO NOTHING
    RETURNING job_ids
)
SELECT
    scanned.queue, scanned.priority, scanned.run_at::text, scanned.id,
    (SELECT count(*) FROM scanned),
    (SELECT coalesce(array_agg(member.id), '{}') FROM recorded, unnest(recorded.job_ids) AS member (id))
FROM scanned
ORDER BY scanned.queue DESC, scanned.priority DESC, scanned.run_at DESC, scanned.id DESC
LIMIT 1
