-- read_blockers: the jobs in the slots that a limited job waits for, in its queue, under its name and under its key.
-- Fence: none (reads).
-- Rows: one per kind: how many jobs are admitted, some of their ids, and how many starts the window holds; 0 = no limit holds the job, or it is not due.
-- Clock: statement_timestamp().
WITH blocked AS MATERIALIZED (
    SELECT j.queue, j.name, j.limit_key, j.hold, j.run_at
    FROM pgjobs_job AS j
    WHERE j.id = %(id)s::bigint -- by its id alone: an index of held jobs would find it too, and read them all
),
kinds AS (
    SELECT kind.kind, kind.per, kind.subject, blocked.queue, blocked.limit_key
    FROM blocked,
    LATERAL (
        VALUES
            ('queue', %(queue_per)s::float8, 'queue:' || blocked.queue),
            ('job', %(job_per)s::float8, 'job:' || %(job)s::text),
            ('key', %(key_per)s::float8, 'key:' || %(job)s::text || chr(10) || blocked.limit_key)
    ) AS kind (kind, per, subject)
    WHERE blocked.hold = 'limited'
      AND blocked.run_at <= statement_timestamp()
      AND (kind.kind <> 'key' OR blocked.limit_key <> '')
)
SELECT
    kinds.kind, kinds.queue, kinds.limit_key, counted.jobs, counted.ids,
    (
        SELECT coalesce(sum(p.starts), 0)::bigint
        FROM pgjobs_admission AS p
        WHERE p.subject = kinds.subject
          AND p.admitted_at > statement_timestamp() - make_interval(secs => kinds.per)
    ) AS starts
FROM kinds,
LATERAL (
    SELECT count(*) AS jobs, (array_agg(j.id ORDER BY j.id))[1:%(limit)s::integer] AS ids
    FROM pgjobs_job AS j
    WHERE j.limit_key IS NOT NULL AND j.hold IS NULL AND j.finished_at IS NULL
      AND (j.ending IS NULL OR j.claim_id IS NOT NULL)
      AND CASE
          WHEN kinds.kind = 'queue' THEN j.queue = kinds.queue
          ELSE j.name = ANY (%(names)s::text[]) AND (kinds.kind = 'job' OR j.limit_key = kinds.limit_key)
      END
) AS counted
