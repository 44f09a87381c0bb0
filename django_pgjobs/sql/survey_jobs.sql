-- survey_jobs: the next slice of unfinished jobs along an index, grouped by all that code has to accept of them: not held, or else held.
-- Fence: none (reads).
-- Rows: one per group = name, queue, hold, ending, kind of its limit key, number of args, names of kwargs (null: no payload of ours), whether values must be decoded, whether there are headers, jobs, seconds since the first was registered, ids, ids of those that have a flow, their flows, and ids of jobs that are being undone; and the key of the slice's last row.
-- Clock: statement_timestamp().
WITH slice AS MATERIALIZED (
    (
        SELECT
            j.id, j.queue, j.priority, ''::text AS hold, j.run_at, j.name, j.ending, j.limit_key, j.created_at, j.flow,
            j.target_id, j.payload, j.headers
        FROM pgjobs_job AS j
        WHERE NOT %(held)s::boolean
          AND j.finished_at IS NULL
          AND j.hold IS NULL
          AND (j.queue, j.priority, j.run_at, j.id)
              > (%(queue)s::text, %(priority)s::smallint, %(run_at)s::timestamptz, %(id)s::bigint)
        ORDER BY j.queue, j.priority, j.run_at, j.id
        LIMIT %(most)s::bigint
    )
    UNION ALL
    (
        SELECT
            j.id, j.queue, 0::smallint, j.hold, j.run_at, j.name, j.ending, j.limit_key, j.created_at, j.flow,
            j.target_id, j.payload, j.headers
        FROM pgjobs_job AS j
        WHERE %(held)s::boolean
          AND j.finished_at IS NULL
          AND j.hold IS NOT NULL
          AND (j.queue, j.hold, j.run_at, j.id)
              > (%(queue)s::text, %(hold)s::text, %(run_at)s::timestamptz, %(id)s::bigint)
        ORDER BY j.queue, j.hold, j.run_at, j.id
        LIMIT %(most)s::bigint
    )
),
final AS MATERIALIZED (
    SELECT s.queue, s.priority, s.hold, s.run_at::text AS run_at, s.id
    FROM slice AS s
    ORDER BY s.queue DESC, s.priority DESC, s.hold DESC, s.run_at DESC, s.id DESC
    LIMIT 1
),
parsed AS (
    SELECT
        s.id, s.queue, s.hold, s.name, s.ending, s.limit_key, s.created_at, s.flow,
        s.target_id, s.payload, s.headers,
        CASE
            WHEN jsonb_typeof(s.payload) <> 'object' THEN false
            ELSE s.payload - 'args' - 'kwargs' = '{}'
                AND jsonb_typeof(s.payload -> 'args') = 'array'
                AND jsonb_typeof(s.payload -> 'kwargs') = 'object'
        END AS regular
    FROM slice AS s
),
shaped AS (
    SELECT
        p.id, p.queue, p.hold, p.name, p.ending, p.created_at, p.flow, p.target_id,
        CASE WHEN p.limit_key = '' THEN 'own' WHEN p.limit_key IS NOT NULL THEN 'keyed' ELSE '' END AS limited,
        CASE WHEN p.regular THEN jsonb_array_length(p.payload -> 'args') END AS args,
        CASE
            WHEN p.regular AND p.payload -> 'kwargs' = '{}' THEN '{}'
            WHEN p.regular THEN ARRAY (SELECT jsonb_object_keys(p.payload -> 'kwargs'))
        END AS kwargs,
        p.regular IS NOT TRUE OR strpos(p.payload::text, '"$') > 0 AS tagged,
        p.headers IS NOT NULL AS headed
    FROM parsed AS p
)
SELECT
    s.name, s.queue, s.hold, s.ending, s.limited, s.args, s.kwargs, s.tagged, s.headed, count(*),
    extract(epoch FROM statement_timestamp() - min(s.created_at))::float8,
    (array_agg(s.id))[1:%(samples)s::integer],
    array_agg(s.id) FILTER (WHERE s.flow <> 0),
    array_agg(s.flow) FILTER (WHERE s.flow <> 0),
    array_agg(s.target_id) FILTER (WHERE s.name = 'pgjobs.undo' AND s.target_id IS NOT NULL),
    f.queue, f.priority, f.hold, f.run_at, f.id
FROM shaped AS s
CROSS JOIN final AS f
GROUP BY
    s.name, s.queue, s.hold, s.ending, s.limited, s.args, s.kwargs, s.tagged, s.headed, f.queue, f.priority, f.hold,
    f.run_at, f.id
