-- withdraw_imported: delete locked jobs whose source has them again, with their notes: they may be imported once more.
-- Fence: none (only unclaimed jobs, which the caller has locked).
-- Rows: one per job: its sequence.
-- Clock: none.
WITH gone AS (
    DELETE FROM pgjobs_job AS j
    WHERE j.id = ANY (%(ids)s::bigint[]) AND j.claimed_at IS NULL AND j.finished_at IS NULL
    RETURNING j.id, j.sequence, j.queue, j.key
),
notes AS (
    DELETE FROM pgjobs_import AS i WHERE i.run = %(run)s::text AND i.source_id = ANY (%(source_ids)s::text[])
),
gates AS (
    DELETE FROM pgjobs_gate AS g USING gone WHERE g.job_id = ANY (ARRAY[gone.id])
),
windows AS (
    DELETE FROM pgjobs_key_window AS w USING gone WHERE w.queue = gone.queue AND w.key = gone.key AND w.job_id = gone.id
)
SELECT gone.sequence FROM gone
