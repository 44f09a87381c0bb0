-- claim_jobs: claim ready jobs, best pair first, each pair from its frontier on, up to one limit for threads and another for the event loop; or the job with an id.
-- Fence: creates (a claim_id made for this execution only).
-- Rows: the claimed jobs, in no order; then one without an id, whose run_at is the time of this statement.
-- Clock: statement_timestamp().
WITH candidates AS MATERIALIZED (
    -- Names as a set, not an array: a scan past 100,000 jobs compares each with one name, not with all.
    SELECT taken.id
    FROM unnest(%(lines)s::boolean[], %(limits)s::integer[]) AS line (is_async, most),
    LATERAL (
        SELECT ready.id
        FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(run_ats)s::timestamptz[], %(ids)s::bigint[],
            %(until_run_ats)s::timestamptz[], %(until_ids)s::bigint[], %(pair_lines)s::boolean[])
            AS pair (queue, priority, run_at, id, until_run_at, until_id, is_async),
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
        WHERE pair.is_async = line.is_async
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
    UPDATE pgjobs_job AS j
    SET claim_id = %(claim_id)s::uuid,
        claimed_at = statement_timestamp(),
        attempt = j.attempt + (j.ending IS NULL)::integer,
        ending_attempt = j.ending_attempt + (j.ending IS NOT NULL)::integer,
        overdue_at = least(
            statement_timestamp() + make_interval(secs => j.timeout_seconds + %(allowance)s::float8),
            j.deadline + make_interval(secs => %(allowance)s::float8)
        ),
        unique_key = CASE WHEN j.key_scope = 'until_started' THEN NULL ELSE j.unique_key END
    WHERE j.id = ANY (ARRAY (SELECT id FROM candidates UNION ALL SELECT id FROM named))
    RETURNING
        j.id, j.run_at,
        CASE
            WHEN pg_column_size(j.payload) <= %(inline_bytes)s::integer
             AND (pg_column_compression(j.payload) IS NULL OR octet_length(j.payload::text) <= %(inline_bytes)s::integer)
             AND (j.options IS NULL OR NOT j.options ? 'results') -- it has to be read with these
            THEN j.payload::text
        END AS payload,
        j.queue, j.priority, j.name, j.attempt, j.max_attempts, j.timeout_seconds,
        left(j.headers::text, %(most_chars)s::integer) AS headers,
        left(nullif(j.description, ''), %(most_chars)s::integer) AS description,
        -- Values that few jobs have: an array, as each key of an object would cost as much as a column.
        CASE
            WHEN coalesce(j.ending, j.limit_key, j.idempotency_key, j.cron_entry) IS NOT NULL
              OR j.options IS NOT NULL
              OR j.flow & 7 <> 0
              OR coalesce(j.cancel_requested_at, j.deadline, j.expires_at) IS NOT NULL
              OR j.ending_attempt <> 0
              OR j.suspect_attempt = j.attempt
              OR j.error <> ''
            THEN json_build_array(
                j.ending, j.ending_attempt, j.cancel_requested_at IS NOT NULL, left(j.error, %(most_chars)s::integer),
                j.limit_key, j.idempotency_key, j.cron_entry, j.fire_at, nullif(j.suspect_attempt = j.attempt, false),
                extract(epoch FROM j.deadline - statement_timestamp())::float8,
                CASE WHEN j.attempt = 1 THEN extract(epoch FROM j.expires_at - statement_timestamp())::float8 END,
                CASE
                    WHEN pg_column_size(j.options) > %(option_bytes)s::integer
                      OR octet_length(j.options::text) > %(option_bytes)s::integer
                    THEN 'true'::jsonb
                    ELSE j.options
                END,
                CASE WHEN j.flow & 7 = 1 THEN coalesce(j.parent_id, 0) WHEN j.flow & 7 <> 0 THEN 0 END
            )::text
        END AS rare,
        j.overdue_at
),
ledger AS (
    INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids)
    SELECT
        %(claim_id)s::uuid, part, %(worker)s::uuid, expiry, least(expiry, soonest + make_interval(secs => %(grace)s::float8)),
        ids[200 * part + 1 : 200 * part + 200]
    FROM (
        SELECT array_agg(id) AS ids, min(overdue_at) AS soonest,
            statement_timestamp() + make_interval(secs => %(lease)s::float8) AS expiry
        FROM claimed
    ) AS taken,
    generate_series(0, (cardinality(ids) - 1) / 200) AS part
)
SELECT id, run_at, payload, queue, priority, name, attempt, max_attempts, timeout_seconds, headers, description, rare
FROM claimed
UNION ALL
SELECT NULL, statement_timestamp(), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
