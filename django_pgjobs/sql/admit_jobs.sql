-- admit_jobs: let in due jobs that limits hold back, as far as there is room; fair between keys. Runs behind lock_admission, in its transaction.
-- Fence: none (only held jobs, compared under the row lock; exact because one transaction does this at a time and counts with a snapshot taken after its lock).
-- Rows: one per queue and name that is not paused: how many were let in, at which priorities, and how far was looked.
-- Clock: statement_timestamp().
WITH given AS MATERIALIZED (
    -- Each queue and name with its limits: of the queue, of the job, of each key; and behind which key to go on.
    SELECT *
    FROM json_to_recordset(%(terms)s::json) AS g (
        queue text, name text, job text, names text[], position integer,
        queue_concurrency bigint, queue_rate bigint, queue_per float8,
        job_concurrency bigint, job_rate bigint, job_per float8,
        key_concurrency bigint, key_rate bigint, key_per float8,
        after_key text, after_priority smallint
    )
),
asked AS MATERIALIZED (
    -- Those that are not paused; none where lock_admission did not get its lock, and then nothing below does anything.
    SELECT given.*
    FROM given
    WHERE current_setting('pgjobs.admits', true) = 'true'
      AND NOT EXISTS (
          SELECT
          FROM pgjobs_queue_state AS p
          WHERE (p.kind = 'queue' AND p.name = given.queue OR p.kind = 'job' AND p.name IN (given.name, given.job))
            AND (p.until IS NULL OR p.until > statement_timestamp())
      )
),
ahead AS MATERIALIZED (
    -- What was let in and has not ended takes up room; what of it nobody has claimed has yet to start.
    SELECT queue, name, priority, count(*) AS admitted, count(*) FILTER (WHERE claim_id IS NULL) AS unclaimed
    FROM (
        SELECT j.queue, j.name, j.priority, j.claim_id
        FROM pgjobs_job AS j
        WHERE j.limit_key IS NOT NULL AND j.hold IS NULL AND j.finished_at IS NULL
          -- Of a job that waits with nothing but its callback left no place is taken and nothing starts.
          AND (j.ending IS NULL OR j.claim_id IS NOT NULL)
          AND (SELECT count(*) FROM asked) > 0
        -- In the order of the one index that holds these rows and no others.
        ORDER BY j.name, j.limit_key, j.queue
    ) AS admitted
    GROUP BY queue, name, priority
),
pairs AS MATERIALIZED (
    -- So much of each queue and priority waits for a claim already.
    SELECT queue, priority, sum(unclaimed) AS unclaimed
    FROM ahead
    GROUP BY queue, priority
),
queues AS MATERIALIZED (
    -- How many more each queue takes: no more than run at once, no more than start within its window.
    SELECT
        q.queue,
        least(q.concurrency - counted.admitted, q.rate - greatest(started.starts, counted.unclaimed)) AS free
    FROM (
        SELECT queue, max(queue_concurrency) AS concurrency, max(queue_rate) AS rate, max(queue_per) AS per
        FROM asked
        GROUP BY queue
    ) AS q,
    LATERAL (
        SELECT coalesce(sum(ahead.admitted), 0) AS admitted, coalesce(sum(ahead.unclaimed), 0) AS unclaimed
        FROM ahead
        WHERE ahead.queue = q.queue
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
        FROM asked
        GROUP BY job, names
    ) AS n,
    LATERAL (
        SELECT coalesce(sum(ahead.admitted), 0) AS admitted, coalesce(sum(ahead.unclaimed), 0) AS unclaimed
        FROM ahead
        WHERE ahead.name = ANY (n.names)
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
    -- Those with room, and how many groups, of one key and one priority each, are looked at for each of them.
    SELECT
        asked.*, queues.free AS queue_free, jobs.free AS job_free,
        greatest(%(groups)s::bigint / count(*) OVER (), 10) AS groups
    FROM asked
    JOIN queues ON queues.queue = asked.queue
    JOIN jobs ON jobs.job = asked.job
    WHERE coalesce(queues.free, 1) > 0 AND coalesce(jobs.free, 1) > 0
),
walked AS MATERIALIZED (
    -- The first job of each group, by leaps from key to key: behind the last turn, then once around from the beginning.
    SELECT
        open.queue, open.name, open.job, open.names, open.position, open.queue_free, open.job_free,
        open.key_concurrency, open.key_rate, open.key_per, open.groups,
        step.limit_key, step.priority, step.run_at, step.place
    FROM open,
    LATERAL (
        SELECT around.limit_key, around.priority, around.run_at, row_number() OVER () AS place
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
            LIMIT open.groups
        ) AS around
    ) AS step
),
due AS MATERIALIZED (
    -- The groups whose first job is due, and how many more their key and their queue and priority take.
    SELECT
        walked.*, %(ahead)s::bigint - coalesce(pairs.unclaimed, 0) AS pair_free,
        CASE
            WHEN walked.limit_key <> ''
            THEN least(
                walked.key_concurrency - counted.admitted,
                walked.key_rate - greatest(started.starts, counted.unclaimed)
            )
        END AS key_free,
        greatest(2 * %(limit)s::bigint / count(*) OVER (), 1) AS rows
    FROM walked
    LEFT JOIN pairs ON pairs.queue = walked.queue AND pairs.priority = walked.priority,
    LATERAL (
        SELECT count(*) AS admitted, count(*) FILTER (WHERE member.claim_id IS NULL) AS unclaimed
        FROM unnest(walked.names) AS known (name),
        LATERAL (
            SELECT j.claim_id
            FROM pgjobs_job AS j
            WHERE walked.limit_key <> '' AND coalesce(walked.key_concurrency, walked.key_rate) IS NOT NULL
              AND j.name = known.name
              -- Not by =, which would make the order below that of the index of claims too.
              AND j.limit_key >= walked.limit_key AND j.limit_key <= walked.limit_key
              AND j.hold IS NULL AND j.finished_at IS NULL
              AND (j.ending IS NULL OR j.claim_id IS NOT NULL)
            ORDER BY j.limit_key, j.queue
        ) AS member
    ) AS counted,
    LATERAL (
        SELECT coalesce(sum(p.starts), 0) AS starts
        FROM pgjobs_admission AS p
        WHERE walked.key_rate IS NOT NULL
          AND p.subject = 'key:' || walked.job || chr(10) || walked.limit_key
          AND p.admitted_at > statement_timestamp() - make_interval(secs => walked.key_per)
    ) AS started
    WHERE walked.run_at <= statement_timestamp()
),
candidates AS MATERIALIZED (
    -- The oldest jobs of each due group, numbered: the first round has one of each group.
    SELECT
        due.queue, due.job, due.limit_key, due.priority, due.queue_free, due.job_free, due.key_free, due.pair_free,
        due.place, due.position, member.id, member.run_at, member.round
    FROM due,
    LATERAL (
        SELECT first.id, first.run_at, row_number() OVER () AS round
        FROM (
            SELECT j.id, j.run_at
            FROM pgjobs_job AS j
            WHERE j.hold = 'limited' AND j.queue = due.queue AND j.name = due.name
              AND j.limit_key = due.limit_key AND j.priority = due.priority
              -- Not from the beginning: what an open snapshot keeps there the walk has passed.
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
    -- Those their key has room for, and their rank within their job, a round after the other.
    SELECT of_keys.*, row_number() OVER (PARTITION BY job ORDER BY priority DESC, round, place, position, id) AS nth_of_job
    FROM of_keys
    WHERE key_free IS NULL OR nth <= key_free
),
of_queues AS (
    -- Those their job has room for, and their rank within their queue and within its priority.
    SELECT
        of_jobs.*,
        row_number() OVER (PARTITION BY queue ORDER BY priority DESC, round, place, position, id) AS nth_of_queue,
        row_number() OVER (PARTITION BY queue, priority ORDER BY round, place, position, id) AS nth_of_pair
    FROM of_jobs
    WHERE job_free IS NULL OR nth_of_job <= job_free
),
picked AS MATERIALIZED (
    -- Those there is room for everywhere, the best first.
    SELECT id
    FROM of_queues
    WHERE (queue_free IS NULL OR nth_of_queue <= queue_free) AND nth_of_pair <= pair_free
    ORDER BY priority DESC, round, place, position, id
    LIMIT %(limit)s::integer
),
held AS MATERIALIZED (
    -- Those of them that nobody else is changing now.
    SELECT j.id
    FROM picked
    JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[picked.id])
    -- Worded so that no partial index answers it: the row is looked up by its id.
    WHERE j.hold IS NOT DISTINCT FROM 'limited'
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
let_in AS (
    -- They may be claimed from now on.
    UPDATE pgjobs_job AS j
    SET hold = NULL, ready_at = statement_timestamp()
    WHERE j.id = ANY (ARRAY (SELECT id FROM held))
    RETURNING j.id, j.queue, j.name, j.limit_key, j.priority
),
subjects AS MATERIALIZED (
    -- How many starts each rate has to count.
    SELECT
        rated.subject, max(rated.per) AS per, count(*) AS starts,
        -- Dated up to a thousandth of the window late, so that a window has a thousand rows at most.
        date_bin(make_interval(secs => max(rated.per) / 1000), statement_timestamp(), 'epoch'::timestamptz)
            + make_interval(secs => max(rated.per) / 1000) AS slot
    FROM let_in
    JOIN asked ON asked.queue = let_in.queue AND asked.name = let_in.name,
    LATERAL (
        VALUES
            ('queue:' || asked.queue, asked.queue_per, asked.queue_rate),
            ('job:' || asked.job, asked.job_per, asked.job_rate),
            ('key:' || asked.job || chr(10) || nullif(let_in.limit_key, ''), asked.key_per, asked.key_rate)
    ) AS rated (subject, per, rate)
    WHERE rated.rate IS NOT NULL AND rated.subject IS NOT NULL
    GROUP BY rated.subject
),
dated AS (
    -- The starts, written down for the turns to come.
    INSERT INTO pgjobs_admission (subject, admitted_at, expires_at, starts)
    SELECT subject, slot, slot + make_interval(secs => per), starts
    FROM subjects
    ON CONFLICT (subject, admitted_at) DO UPDATE SET starts = pgjobs_admission.starts + excluded.starts
)
SELECT
    asked.queue, asked.name, entered.jobs, entered.priorities, entered.last_key, entered.last_priority,
    open.queue IS NULL AS closed, looked.groups >= open.groups AS cut, looked.turned, looked.due, looked.last_key, looked.last_priority,
    extract(epoch FROM looked.next - statement_timestamp())::float8 AS seconds,
    (
        SELECT count(pg_notify('pgjobs', pair.priority::text || ':' || pair.queue))
        FROM (SELECT DISTINCT queue, priority FROM let_in) AS pair
        WHERE %(notify)s::boolean
    )
FROM asked
LEFT JOIN open ON open.queue = asked.queue AND open.name = asked.name,
LATERAL (
    SELECT
        count(*) AS jobs, array_agg(DISTINCT priority) AS priorities,
        -- The last in the order of the walk: of what it came to behind its turning point, if it came that far.
        (array_agg(limit_key ORDER BY (limit_key, priority) > (asked.after_key, asked.after_priority), limit_key DESC, priority DESC))[1]
            AS last_key,
        (array_agg(priority ORDER BY (limit_key, priority) > (asked.after_key, asked.after_priority), limit_key DESC, priority DESC))[1]
            AS last_priority
    FROM let_in
    WHERE let_in.queue = asked.queue AND let_in.name = asked.name
) AS entered,
LATERAL (
    SELECT
        count(*) AS groups,
        coalesce(bool_or((limit_key, priority) <= (asked.after_key, asked.after_priority)), false) AS turned,
        coalesce(bool_or(run_at <= statement_timestamp()), false) AS due,
        min(least(run_at, '9999-12-29 00:00Z')) FILTER (WHERE run_at > statement_timestamp()) AS next,
        (array_agg(limit_key ORDER BY place DESC))[1] AS last_key, (array_agg(priority ORDER BY place DESC))[1] AS last_priority
    FROM walked
    WHERE walked.queue = asked.queue AND walked.name = asked.name
) AS looked
