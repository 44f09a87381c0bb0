-- land_jobs: let jobs run that have arrived from another database and were given away there. A parked one stays parked, a limited one waits for admission here, and none keeps a pause.
-- Fence: none (only jobs that are held since they arrived from there).
-- Rows: one per job: its id there, and here, and the workers to wake (no priority: admitters; no queue: none).
-- Clock: statement_timestamp().
UPDATE pgjobs_job AS j
SET hold = CASE
        WHEN j.options #>> '{move,hold}' = 'parked' THEN 'parked'
        WHEN j.limit_key IS NOT NULL THEN 'limited'
    END,
    hold_reason = CASE WHEN j.options #>> '{move,hold}' = 'parked' THEN j.options #>> '{move,reason}' ELSE '' END,
    options = j.options - 'move' || jsonb_build_object(
        'moved', jsonb_build_object('from', %(alias)s::text, 'id', (j.options #>> '{move,id}')::bigint)
    ),
    ready_at = statement_timestamp()
WHERE j.id = ANY (%(ids)s::bigint[])
  AND j.hold = 'moving'
  AND j.options #>> '{move,from}' = %(source)s::text
RETURNING
    (j.options #>> '{moved,id}')::bigint AS old_id, j.id,
    CASE WHEN j.hold IS DISTINCT FROM 'parked' THEN j.queue END AS queue, CASE WHEN j.hold IS NULL THEN j.priority END AS priority
