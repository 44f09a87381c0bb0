-- admit_jobs: admit due jobs that limits hold, as far as there is room; fair between keys. Runs after lock_admission, in its transaction.
-- Fence: none (only held jobs, checked under the row lock; exact because one transaction does this at a time and counts with a snapshot taken after its lock).
-- Rows: one per group that is not paused: how many were admitted, at which priorities, and how far it scanned.
-- Clock: statement_timestamp().
WITH in_force AS MATERIALIZED (
    -- Numbers that operators have set in place of the code's; nearly always none.
    SELECT o.kind, o.name, o.concurrency, o.rate, o.per
    FROM pgjobs_limit AS o
    WHERE o.until IS NULL OR o.until > statement_timestamp()
),
terms AS MATERIALIZED (
    -- Each group (queue and name) with its limits: of the queue, of the job, of each key; and the lane after which the scan continues.
    SELECT
        g.queue, g.name, g.job, g.names, g.position, g.after_key, g.after_priority,
        coalesce(of_queue.concurrency, g.queue_concurrency) AS queue_concurrency,
        coalesce(of_queue.rate, g.queue_rate) AS queue_rate,
        CASE WHEN of_queue.rate IS NULL THEN g.queue_per ELSE of_queue.per END AS queue_per,
        coalesce(of_job.concurrency, g.job_concurrency) AS job_concurrency,
        coalesce(of_job.rate, g.job_rate) AS job_rate,
        CASE WHEN of_job.rate IS NULL THEN g.job_per ELSE of_job.per END AS job_per,
        coalesce(of_key.concurrency, g.key_concurrency) AS key_concurrency,
        coalesce(of_key.rate, g.key_rate) AS key_rate,
        CASE WHEN of_key.rate IS NULL THEN g.key_per ELSE of_key.per END AS key_per
    FROM json_to_recordset(%(terms)s::json) AS g (
        queue text, name text, job text, names text[], position integer,
        queue_concurrency bigint, queue_rate bigint, queue_per float8,
        job_concurrency bigint, job_rate bigint, job_per float8,
        key_concurrency bigint, key_rate bigint, key_per float8,
        after_key text, after_priority smallint
    )
    LEFT JOIN in_force AS of_queue ON of_queue.kind = 'queue' AND of_queue.name = g.queue
    LEFT JOIN LATERAL (
        SELECT o.concurrency, o.rate, o.per
        FROM in_force AS o
        WHERE o.kind = 'job' AND o.name = ANY (g.names)
        ORDER BY array_position(g.names, o.name)
        LIMIT 1
    ) AS of_job ON true
    LEFT JOIN LATERAL (
        SELECT o.concurrency, o.rate, o.per
        FROM in_force AS o
        WHERE o.kind = 'key' AND o.name = ANY (g.names)
        ORDER BY array_position(g.names, o.name)
        LIMIT 1
    ) AS of_key ON true
),
unpaused AS MATERIALIZED (
    -- The groups that are not paused; none if lock_admission did not get its lock, and then nothing below does anything.
    SELECT terms.*
    FROM terms
    WHERE current_setting('pgjobs.admits', true) = 'true'
      AND NOT EXISTS (
          SELECT
          FROM pgjobs_queue_state AS p
          WHERE (p.kind = 'queue' AND p.name = terms.queue OR p.kind = 'job' AND p.name IN (terms.name, terms.job))
            AND (p.until IS NULL OR p.until > statement_timestamp())
      )
),
in_flight AS MATERIALIZED (
    -- Admitted jobs that have not ended occupy slots; the unclaimed ones among them have yet to start.
    SELECT queue, name, priority, count(*) AS admitted, count(*) FILTER (WHERE claim_id IS NULL) AS unclaimed
    FROM (
        SELECT j.queue, j.name, j.priority, j.claim_id
        FROM pgjobs_job AS j
        WHERE j.limit_key IS NOT NULL AND j.hold IS NULL AND j.finished_at IS NULL
          -- A waiting job with only its callback left occupies no slot and counts as no start.
          AND (j.ending IS NULL OR j.claim_id IS NOT NULL)
          AND (SELECT count(*) FROM unpaused) > 0
        -- In the order of the one index that holds these rows and no others.
        ORDER BY j.name, j.limit_key, j.queue
    ) AS admitted
    GROUP BY queue, name, priority
),
pairs AS MATERIALIZED (
    -- How many admitted jobs of each queue and priority already wait for a claim.
    SELECT queue, priority, sum(unclaimed) AS unclaimed
    FROM in_flight
    GROUP BY queue, priority
),
queues AS MATERIALIZED (
    -- How many more each queue admits: within its concurrency, and within the starts of its window.
    SELECT
        q.queue,
        least(q.concurrency - counted.admitted, q.rate - greatest(started.starts, counted.unclaimed)) AS free
    FROM (
        SELECT queue, max(queue_concurrency) AS concurrency, max(queue_rate) AS rate, max(queue_per) AS per
        FROM unpaused
        GROUP BY queue
    ) AS q,
    LATERAL (
        SELECT coalesce(sum(in_flight.admitted), 0) AS admitted, coalesce(sum(in_flight.unclaimed), 0) AS unclaimed
        FROM in_flight
        WHERE in_flight.queue = q.queue
    ) AS counted,
    LATERAL (
        SELECT coalesce(sum(p.starts), 0) AS starts
        FROM pgjobs_admission AS p
        WHERE q.rate IS NOT NULL
          AND p.subject = 'queue:' || q.queue
          AND p.admitted_at > statement_timestamp() - make_interval(secs => q.per)
    ) AS started
),
jobs AS MATERIALIZED (
    -- The same for each job, which may have had other names.
    SELECT
        n.job,
        least(n.concurrency - counted.admitted, n.rate - greatest(started.starts, counted.unclaimed)) AS free
    FROM (
        SELECT job, names, max(job_concurrency) AS concurrency, max(job_rate) AS rate, max(job_per) AS per
        FROM unpaused
        GROUP BY job, names
    ) AS n,
    LATERAL (
        SELECT coalesce(sum(in_flight.admitted), 0) AS admitted, coalesce(sum(in_flight.unclaimed), 0) AS unclaimed
        FROM in_flight
        WHERE in_flight.name = ANY (n.names)
    ) AS counted,
    LATERAL (
        SELECT coalesce(sum(p.starts), 0) AS starts
        FROM pgjobs_admission AS p
        WHERE n.rate IS NOT NULL
          AND p.subject = 'job:' || n.job
          AND p.admitted_at > statement_timestamp() - make_interval(secs => n.per)
    ) AS started
),
open AS MATERIALIZED (
    -- The groups with room, and how many lanes (one key and one priority each) to scan for each of them.
    SELECT
        unpaused.*, queues.free AS queue_free, jobs.free AS job_free,
        greatest(%(lanes)s::bigint / count(*) OVER (), 10) AS most_lanes
    FROM unpaused
    JOIN queues ON queues.queue = unpaused.queue
    JOIN jobs ON jobs.job = unpaused.job
    WHERE coalesce(queues.free, 1) > 0 AND coalesce(jobs.free, 1) > 0
),
lanes AS MATERIALIZED (
    -- The first job of each lane, by leaps from key to key: after the end of the last turn, then once around from the beginning.
    SELECT
        open.queue, open.name, open.job, open.names, open.position, open.queue_free, open.job_free,
        open.key_concurrency, open.key_rate, open.key_per, open.most_lanes,
        step.limit_key, step.priority, step.run_at, step.ordinal
    FROM open,
    LATERAL (
        SELECT around.limit_key, around.priority, around.run_at, row_number() OVER () AS ordinal
        FROM (
            (
                WITH RECURSIVE later AS (
                    (
                        SELECT j.limit_key, j.priority, j.run_at
                        FROM pgjobs_job AS j
                        WHERE j.hold = 'limited' AND j.queue = open.queue AND j.name = open.name
                          AND (j.limit_key, j.priority) > (coalesce(open.after_key, ''), coalesce(open.after_priority, -32768))
                        ORDER BY j.limit_key, j.priority, j.run_at, j.id
                        LIMIT 1
                    )
                    UNION ALL
                    SELECT following.limit_key, following.priority, following.run_at
                    FROM later,
                    LATERAL (
                        SELECT j.limit_key, j.priority, j.run_at
                        FROM pgjobs_job AS j
                        WHERE j.hold = 'limited' AND j.queue = open.queue AND j.name = open.name
                          AND (j.limit_key, j.priority) > (later.limit_key, later.priority)
                        ORDER BY j.limit_key, j.priority, j.run_at, j.id
                        LIMIT 1
                    ) AS following
                )
                SELECT limit_key, priority, run_at FROM later
            )
            UNION ALL
            (
                WITH RECURSIVE earlier AS (
                    (
                        SELECT j.limit_key, j.priority, j.run_at
                        FROM pgjobs_job AS j
                        WHERE j.hold = 'limited' AND j.queue = open.queue AND j.name = open.name
                          AND (j.limit_key, j.priority) <= (open.after_key, open.after_priority)
                        ORDER BY j.limit_key, j.priority, j.run_at, j.id
                        LIMIT 1
                    )
                    UNION ALL
                    SELECT following.limit_key, following.priority, following.run_at
                    FROM earlier,
                    LATERAL (
                        SELECT j.limit_key, j.priority, j.run_at
                        FROM pgjobs_job AS j
                        WHERE j.hold = 'limited' AND j.queue = open.queue AND j.name = open.name
                          AND (j.limit_key, j.priority) > (earlier.limit_key, earlier.priority)
                          AND (j.limit_key, j.priority) <= (open.after_key, open.after_priority)
                        ORDER BY j.limit_key, j.priority, j.run_at, j.id
                        LIMIT 1
                    ) AS following
                )
                SELECT limit_key, priority, run_at FROM earlier
            )
            LIMIT open.most_lanes
        ) AS around
    ) AS step
),
due AS MATERIALIZED (
    -- The lanes whose first job is due, and how many more their key, and their queue and priority, admit.
    SELECT
        lanes.*, %(lookahead)s::bigint - coalesce(pairs.unclaimed, 0) AS pair_free,
        CASE
            WHEN lanes.limit_key <> ''
            THEN least(
                lanes.key_concurrency - counted.admitted,
                lanes.key_rate - greatest(started.starts, counted.unclaimed)
            )
        END AS key_free,
        greatest(2 * %(limit)s::bigint / count(*) OVER (), 1) AS rows
    FROM lanes
    LEFT JOIN pairs ON pairs.queue = lanes.queue AND pairs.priority = lanes.priority,
    LATERAL (
        SELECT count(*) AS admitted, count(*) FILTER (WHERE member.claim_id IS NULL) AS unclaimed
        FROM unnest(lanes.names) AS known (name),
        LATERAL (
            SELECT j.claim_id
            FROM pgjobs_job AS j
            WHERE lanes.limit_key <> '' AND coalesce(lanes.key_concurrency, lanes.key_rate) IS NOT NULL
              AND j.name = known.name
              -- Not =: with it, the index of claims would match the order below too.
              AND j.limit_key >= lanes.limit_key AND j.limit_key <= lanes.limit_key
              AND j.hold IS NULL AND j.finished_at IS NULL
              AND (j.ending IS NULL OR j.claim_id IS NOT NULL)
            ORDER BY j.limit_key, j.queue
        ) AS member
    ) AS counted,
    LATERAL (
        SELECT coalesce(sum(p.starts), 0) AS starts
        FROM pgjobs_admission AS p
        WHERE lanes.key_rate IS NOT NULL
          AND p.subject = 'key:' || lanes.job || chr(10) || lanes.limit_key
          AND p.admitted_at > statement_timestamp() - make_interval(secs => lanes.key_per)
    ) AS started
    WHERE lanes.run_at <= statement_timestamp()
),
candidates AS MATERIALIZED (
    -- The oldest jobs of each due lane, numbered: the first round has one of each lane.
    SELECT
        due.queue, due.job, due.limit_key, due.priority, due.queue_free, due.job_free, due.key_free, due.pair_free,
        due.ordinal, due.position, member.id, member.run_at, member.round
    FROM due,
    LATERAL (
        SELECT first.id, first.run_at, row_number() OVER () AS round
        FROM (
            SELECT j.id, j.run_at
            FROM pgjobs_job AS j
            WHERE j.hold = 'limited' AND j.queue = due.queue AND j.name = due.name
              AND j.limit_key = due.limit_key AND j.priority = due.priority
              -- Not from the beginning: the scan has passed the dead rows that an open snapshot keeps there.
              AND j.run_at >= due.run_at AND j.run_at <= statement_timestamp()
            ORDER BY j.run_at, j.id
            LIMIT least(due.key_free, due.rows)
        ) AS first
    ) AS member
    WHERE coalesce(due.key_free, 1) > 0 AND due.pair_free > 0
),
of_keys AS (
    -- Their rank within their key, for its room.
    SELECT candidates.*, row_number() OVER (PARTITION BY job, limit_key ORDER BY priority DESC, run_at, id) AS nth
    FROM candidates
),
of_jobs AS (
    -- The jobs that their key has room for, and their rank within the name of their job, one round after the other.
    SELECT of_keys.*, row_number() OVER (PARTITION BY job ORDER BY priority DESC, round, ordinal, position, id) AS nth_of_job
    FROM of_keys
    WHERE key_free IS NULL OR nth <= key_free
),
of_queues AS (
    -- The jobs that their name has room for, and their rank within their queue and within its priority.
    SELECT
        of_jobs.*,
        row_number() OVER (PARTITION BY queue ORDER BY priority DESC, round, ordinal, position, id) AS nth_of_queue,
        row_number() OVER (PARTITION BY queue, priority ORDER BY round, ordinal, position, id) AS nth_of_pair
    FROM of_jobs
    WHERE job_free IS NULL OR nth_of_job <= job_free
),
picked AS MATERIALIZED (
    -- The jobs that have room everywhere, best first.
    SELECT id
    FROM of_queues
    WHERE (queue_free IS NULL OR nth_of_queue <= queue_free) AND nth_of_pair <= pair_free
    ORDER BY priority DESC, round, ordinal, position, id
    LIMIT %(limit)s::integer
),
locked AS MATERIALIZED (
    -- Those of them whose rows no other transaction has locked.
    SELECT j.id
    FROM picked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[picked.id])
    -- Written so that no partial index matches: the row is looked up by its id.
    WHERE j.hold IS NOT DISTINCT FROM 'limited'
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
admitted_jobs AS (
    -- From now on workers may claim them.
    UPDATE pgjobs_job AS j
    SET hold = NULL, ready_at = statement_timestamp()
    WHERE j.id = ANY (ARRAY (SELECT id FROM locked))
    RETURNING j.id, j.queue, j.name, j.limit_key, j.priority
),
subjects AS MATERIALIZED (
    -- How many starts each rate has to count.
    SELECT
        rated.subject, max(rated.per) AS per, count(*) AS starts,
        -- Dated up to a thousandth of the window late, so that a window has a thousand rows at most.
        date_bin(make_interval(secs => max(rated.per) / 1000), statement_timestamp(), 'epoch'::timestamptz)
            + make_interval(secs => max(rated.per) / 1000) AS slot
    FROM admitted_jobs
    JOIN unpaused ON unpaused.queue = admitted_jobs.queue AND unpaused.name = admitted_jobs.name,
    LATERAL (
        VALUES
            ('queue:' || unpaused.queue, unpaused.queue_per, unpaused.queue_rate),
            ('job:' || unpaused.job, unpaused.job_per, unpaused.job_rate),
            ('key:' || unpaused.job || chr(10) || nullif(admitted_jobs.limit_key, ''), unpaused.key_per, unpaused.key_rate)
    ) AS rated (subject, per, rate)
    WHERE rated.rate IS NOT NULL AND rated.subject IS NOT NULL
    GROUP BY rated.subject
),
dated AS (
    -- Store the starts for later turns.
    INSERT INTO pgjobs_admission (subject, admitted_at, expires_at, starts)
    SELECT subject, slot, slot + make_interval(secs => per), starts
    FROM subjects
    ON CONFLICT (subject, admitted_at) DO UPDATE
    SET starts = pgjobs_admission.starts + excluded.starts,
        expires_at = greatest(pgjobs_admission.expires_at, excluded.expires_at) -- the period may have changed
)
SELECT
    unpaused.queue, unpaused.name, summary.jobs, summary.priorities, summary.last_key, summary.last_priority,
    open.queue IS NULL AS closed, scan.lanes >= open.most_lanes AS cut, scan.turned, scan.due, scan.last_key, scan.last_priority,
    extract(epoch FROM scan.next - statement_timestamp())::float8 AS seconds,
    (
        SELECT count(pg_notify('pgjobs', pair.priority::text || ':' || pair.queue))
        FROM (SELECT DISTINCT queue, priority FROM admitted_jobs) AS pair
        WHERE %(notify)s::boolean
    )
FROM unpaused
LEFT JOIN open ON open.queue = unpaused.queue AND open.name = unpaused.name,
LATERAL (
    SELECT
        count(*) AS jobs, array_agg(DISTINCT priority) AS priorities,
        -- The last in the order of the scan: beyond its turning point, if it got that far.
        (array_agg(limit_key ORDER BY (limit_key, priority) > (unpaused.after_key, unpaused.after_priority), limit_key DESC, priority DESC))[1]
            AS last_key,
        (array_agg(priority ORDER BY (limit_key, priority) > (unpaused.after_key, unpaused.after_priority), limit_key DESC, priority DESC))[1]
            AS last_priority
    FROM admitted_jobs
    WHERE admitted_jobs.queue = unpaused.queue AND admitted_jobs.name = unpaused.name
) AS summary,
LATERAL (
    SELECT
        count(*) AS lanes,
        coalesce(bool_or((limit_key, priority) <= (unpaused.after_key, unpaused.after_priority)), false) AS turned,
        coalesce(bool_or(run_at <= statement_timestamp()), false) AS due,
        min(least(run_at, '9999-12-29 00:00Z')) FILTER (WHERE run_at > statement_timestamp()) AS next,
        (array_agg(limit_key ORDER BY ordinal DESC))[1] AS last_key, (array_agg(priority ORDER BY ordinal DESC))[1] AS last_priority
    FROM lanes
    WHERE lanes.queue = unpaused.queue AND lanes.name = unpaused.name
) AS scan
