-- read_fences: why a fenced write matched no row of a job: locked, done before, or lost. Locks nothing.
-- Fence: none (reads).
-- Rows: one per job asked for that still exists.
-- Clock: none.
SELECT
    j.id,
    j.claim_id IS NOT DISTINCT FROM fence.claim_id AS ours,
    j.outcome IS NOT NULL AS ended,
    coalesce(
        (
            SELECT
                -- Where a rescue gives up a job for its deadline, there is no exception; a worker's own end has one.
                CASE WHEN a.exception = '' AND a.cause = 'timeout' THEN 'lost' ELSE a.cause END
            FROM pgjobs_attempt AS a
            WHERE a.job_id = j.id AND a.claim_id = fence.claim_id
        ),
        CASE
            WHEN j.flow <> 0
            THEN coalesce(
                (SELECT 'next' FROM pgjobs_step AS s WHERE s.job_id = j.id AND s.claim_id = fence.claim_id LIMIT 1),
                (
                    SELECT 'suspend' FROM pgjobs_memo AS m
                    WHERE m.job_id = j.id AND m.claim_id = fence.claim_id AND m.finished_at IS NULL
                    LIMIT 1
                )
            )
        END
    ) AS recorded,
    j.ending IS NOT NULL AS ending,
    j.cancel_requested_at IS NOT NULL AS cancelled,
    j.claim_id IS NOT NULL AS claimed,
    j.flow
FROM unnest(%(ids)s::bigint[], %(claim_ids)s::uuid[]) AS fence (id, claim_id)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[fence.id])
