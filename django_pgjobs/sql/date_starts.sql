-- date_starts: re-date the starts of admitted, unclaimed jobs: they start later than they were admitted. Runs after lock_admission, in its transaction.
-- Fence: none (changes no job; exact because one transaction does this at a time and counts with a snapshot taken after its lock).
-- Rows: 1 = how many queues, names and keys have such starts.
-- Clock: statement_timestamp().
WITH in_force AS MATERIALIZED (
    -- Rates that operators have set in place of the code's; nearly always none.
    SELECT o.kind, o.name, o.per
    FROM pgjobs_limit AS o
    WHERE o.rate IS NOT NULL
      AND (o.until IS NULL OR o.until > statement_timestamp())
      AND current_setting('pgjobs.admits', true) = 'true'
),
rates AS MATERIALIZED (
    SELECT g.subject, coalesce(of_job.per, g.per) AS per, g.queue, g.name, g.keyed
    FROM json_to_recordset(%(rates)s::json) AS g (
        subject text, per float8, queue text, name text, keyed boolean, names text[]
    )
    LEFT JOIN LATERAL (
        SELECT o.per
        FROM in_force AS o
        WHERE o.kind = CASE WHEN g.keyed THEN 'key' ELSE 'job' END AND o.name = ANY (g.names)
        ORDER BY array_position(g.names, o.name)
        LIMIT 1
    ) AS of_job ON true
    WHERE current_setting('pgjobs.admits', true) = 'true'
      AND NOT EXISTS (SELECT FROM in_force AS o WHERE o.kind = 'queue' AND o.name = g.queue)
    UNION ALL
    SELECT 'queue', o.per, o.name, NULL, false
    FROM in_force AS o
    WHERE o.kind = 'queue'
),
waiting AS MATERIALIZED (
    SELECT queue, name, limit_key, count(*) AS jobs
    FROM (
        SELECT j.queue, j.name, j.limit_key
        FROM pgjobs_job AS j
        WHERE j.limit_key IS NOT NULL AND j.hold IS NULL AND j.finished_at IS NULL
          AND j.claim_id IS NULL AND j.ending IS NULL
          AND (SELECT count(*) FROM rates) > 0
        -- In the order of the one index that holds these rows and no others.
        ORDER BY j.name, j.limit_key, j.queue
    ) AS unclaimed
    GROUP BY queue, name, limit_key
),
subjects AS MATERIALIZED (
    SELECT
        subject, max(per) AS per, sum(jobs) AS unclaimed,
        date_bin(make_interval(secs => max(per) / 1000), statement_timestamp(), 'epoch'::timestamptz)
            + make_interval(secs => max(per) / 1000) AS slot
    FROM (
        SELECT of_queue.subject || ':' || waiting.queue AS subject, of_queue.per, waiting.jobs
        FROM waiting,
        LATERAL (
            SELECT rates.subject, rates.per
            FROM rates
            WHERE rates.queue IN (waiting.queue, '*')
            ORDER BY rates.queue = '*'
            LIMIT 1
        ) AS of_queue
        WHERE of_queue.per IS NOT NULL
        UNION ALL
        SELECT CASE WHEN rates.keyed THEN rates.subject || chr(10) || waiting.limit_key ELSE rates.subject END, rates.per, waiting.jobs
        FROM rates
        JOIN waiting ON waiting.name = rates.name
        WHERE (NOT rates.keyed OR waiting.limit_key <> '') AND rates.per IS NOT NULL
    ) AS counted
    GROUP BY subject
),
rated AS MATERIALIZED (
    SELECT
        subjects.subject, subjects.per, subjects.slot,
        greatest(subjects.unclaimed - coalesce(current.starts, 0), 0) AS late
    FROM subjects
    LEFT JOIN pgjobs_admission AS current ON current.subject = subjects.subject AND current.admitted_at = subjects.slot
),
newest AS MATERIALIZED (
    SELECT
        p.subject, p.admitted_at, p.starts,
        least(
            p.starts,
            rated.late - (sum(p.starts) OVER (PARTITION BY p.subject ORDER BY p.admitted_at DESC) - p.starts)
        ) AS moved
    FROM rated
    JOIN pgjobs_admission AS p ON p.subject = rated.subject
    WHERE rated.late > 0
      AND p.admitted_at < rated.slot
      AND p.admitted_at > statement_timestamp() - make_interval(secs => rated.per)
),
moved AS (
    UPDATE pgjobs_admission AS p
    SET starts = p.starts - newest.moved
    FROM newest
    WHERE p.subject = newest.subject AND p.admitted_at = newest.admitted_at
      AND newest.moved > 0 AND newest.moved < newest.starts
),
emptied AS (
    DELETE FROM pgjobs_admission AS p
    USING newest
    WHERE p.subject = newest.subject AND p.admitted_at = newest.admitted_at AND newest.moved = newest.starts
),
dated AS (
    INSERT INTO pgjobs_admission (subject, admitted_at, expires_at, starts)
    SELECT subject, slot, slot + make_interval(secs => per), late
    FROM rated
    WHERE late > 0
    ON CONFLICT (subject, admitted_at) DO UPDATE
    SET starts = pgjobs_admission.starts + excluded.starts,
        expires_at = greatest(pgjobs_admission.expires_at, excluded.expires_at) -- the period may have changed
)
SELECT count(*) FROM subjects
