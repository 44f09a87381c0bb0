-- list_parked: the latest parked job of each of these queues, with what the worker that parked it said.
-- Fence: none (reads).
-- Rows: one per queue with parked jobs = the queue, the job, what was said.
-- Clock: none.
SELECT listed.queue, parked.id, parked.reason
FROM unnest(%(queues)s::text[]) AS listed (queue)
CROSS JOIN LATERAL (
    SELECT j.id, left(j.hold_reason, 300) AS reason
    FROM pgjobs_job AS j
    WHERE j.queue = listed.queue AND j.hold = 'parked' AND j.finished_at IS NULL
    ORDER BY j.run_at DESC, j.id DESC
    LIMIT 1
) AS parked
