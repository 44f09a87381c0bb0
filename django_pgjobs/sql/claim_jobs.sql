-- claim_jobs: claim ready jobs, best pair first, each pair from its frontier on, up to one limit for each line of pairs, of jobs for threads or for the event loop; or the job with an id.
-- Fence: creates (a claim_id made for this execution only).
-- Rows: the claimed jobs, in no order, those of one kind in one row of columns, and the time of this statement; one without a queue if there are none.
-- Clock: statement_timestamp().
WITH found AS MATERIALIZED (
    -- Names as a set, not an array: a scan past 100,000 jobs compares each with one name, not with all.
    SELECT taken.id
    FROM unnest(%(lines)s::boolean[], %(limits)s::integer[]) WITH ORDINALITY AS line (is_async, most, number),
    LATERAL (
        SELECT ready.id
        FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(run_ats)s::timestamptz[], %(ids)s::bigint[],
            %(until_run_ats)s::timestamptz[], %(until_ids)s::bigint[], %(pair_lines)s::bigint[])
            AS pair (queue, priority, run_at, id, until_run_at, until_id, line),
        LATERAL (
            SELECT j.id
            FROM pgjobs_job AS j
            WHERE j.queue = pair.queue
              AND j.priority = pair.priority
              AND (j.run_at, j.id) > (
                  CASE
                      -- The clock was set back: until it catches up, new jobs would be behind the frontier.
                      WHEN pair.run_at > statement_timestamp() THEN statement_timestamp() - interval '5 s'
                      ELSE pair.run_at
                  END,
                  pair.id
              )
              AND (j.run_at, j.id) <= (coalesce(pair.until_run_at, 'infinity'), coalesce(pair.until_id, 0))
              AND j.run_at <= statement_timestamp()
              AND j.finished_at IS NULL
              AND j.hold IS NULL
              AND j.claim_id IS NULL
              AND (j.ending IS NULL AND j.name IN (SELECT unnest(%(async_names)s::text[]))) = line.is_async
            ORDER BY j.run_at, j.id
            LIMIT line.most
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS ready
        WHERE pair.line = line.number
        LIMIT line.most
    ) AS taken
    LIMIT %(most)s::integer
),
named AS (
    SELECT id
    FROM pgjobs_job
    WHERE id = %(id)s::bigint
      AND run_at <= statement_timestamp()
      AND num_nulls(finished_at, hold, claim_id) = 3 -- so that no partial index fits: only the primary key's finds it
    FOR NO KEY UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE pgjobs_job
    SET claim_id = %(claim_id)s::uuid,
        claimed_at = statement_timestamp(),
        attempt = attempt + (ending IS NULL)::integer,
        ending_attempt = ending_attempt + (ending IS NOT NULL)::integer,
        overdue_at = least(
            statement_timestamp() + make_interval(secs => timeout_seconds + %(allowance)s::float8),
            deadline + make_interval(secs => %(allowance)s::float8)
        ),
        unique_key = CASE WHEN key_scope = 'until_started' THEN NULL ELSE unique_key END
    WHERE id = ANY (ARRAY (SELECT id FROM found UNION ALL SELECT id FROM named))
    RETURNING
        id, run_at,
        CASE
            WHEN pg_column_size(payload) <= %(inline)s::integer
             AND (pg_column_compression(payload) IS NULL OR octet_length(payload::text) <= %(inline)s::integer)
             AND (options IS NULL OR NOT options ? 'results') -- it has to be read with these
            THEN payload::text
            ELSE ''
        END AS payload,
        queue, priority, name, attempt, max_attempts, timeout_seconds,
        left(headers::text, %(chars)s::integer) AS headers,
        left(nullif(description, ''), %(chars)s::integer) AS description,
        -- Values that few jobs have: an array, as each key of an object would cost as much as a column.
        CASE
            WHEN coalesce(ending, limit_key, idempotency_key, cron_entry) IS NOT NULL
              OR options IS NOT NULL
              OR flow <> 0
              OR coalesce(cancel_requested_at, deadline, expires_at) IS NOT NULL
              OR ending_attempt <> 0
              OR suspect_attempt = attempt
              OR error <> ''
            THEN json_build_array(
                ending, ending_attempt, cancel_requested_at IS NOT NULL, left(error, %(chars)s::integer),
                limit_key, idempotency_key, cron_entry, fire_at, nullif(suspect_attempt = attempt, false),
                extract(epoch FROM deadline - statement_timestamp())::float8,
                CASE WHEN attempt = 1 THEN extract(epoch FROM expires_at - statement_timestamp())::float8 END,
                CASE
                    WHEN pg_column_size(options) > %(bytes)s::integer
                      OR octet_length(options::text) > %(bytes)s::integer
                    THEN 'true'::jsonb
                    ELSE options
                END,
                flow, parent_id
            )::text
            ELSE ''
        END AS rare,
        overdue_at
),
ledger AS (
    INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids)
    SELECT
        %(claim_id)s::uuid, part, %(worker)s::uuid, expiry, least(expiry, due + make_interval(secs => %(grace)s::float8)),
        ids[200 * part + 1 : 200 * part + 200]
    FROM (
        SELECT array_agg(id) AS ids, min(overdue_at) AS due,
            statement_timestamp() + make_interval(secs => %(lease)s::float8) AS expiry
        FROM claimed
    ) AS taken,
    generate_series(0, (cardinality(ids) - 1) / 200) AS part
)
SELECT
    queue, priority, name, attempt, max_attempts, timeout_seconds,
    -- Few, wide texts: a driver in Python takes four microseconds for a value, however short.
    json_agg(id)::text, json_agg(run_at)::text,
    string_agg(payload, E'\n'), -- the texts of JSON have no line feed
    string_agg(coalesce(headers, ''), E'\n'),
    string_agg(rare, E'\n'),
    CASE WHEN count(description) > 0 THEN json_agg(description)::text END,
    statement_timestamp()
FROM (SELECT) AS once
LEFT JOIN claimed ON true
GROUP BY queue, priority, name, attempt, max_attempts, timeout_seconds
