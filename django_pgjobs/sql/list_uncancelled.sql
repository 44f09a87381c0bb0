-- list_uncancelled: of the next closed gates, find batches that were cancelled, or have failed fast, while members that were not asked to stop still run; looks at some members of each, in the first from the one after ``member`` on.
-- Fence: none (reads).
-- Rows: one per gate looked at: its job, how, by whom and why its members are to be cancelled, null unless they are, and the member after which it looked no further, null if it saw all.
-- Clock: statement_timestamp().
SELECT
    g.job_id,
    CASE WHEN batch.goes_on THEN batch.mode END, CASE WHEN batch.goes_on THEN batch.by END,
    CASE WHEN batch.goes_on THEN batch.reason END,
    CASE WHEN batch.members >= %(members)s::integer AND NOT batch.goes_on THEN batch.last END
FROM (
    SELECT w.job_id, w.eager, w.fail_fast, w.abandoned
    FROM pgjobs_gate AS w
    WHERE w.opened_at IS NULL AND w.job_id >= %(first)s::bigint
    ORDER BY w.job_id
    LIMIT %(limit)s::integer
) AS g
LEFT JOIN LATERAL (
    SELECT
        coalesce(nullif(j.cancel_mode, ''), 'ask') AS mode,
        CASE WHEN j.cancel_requested_at IS NULL THEN 'pgjobs:fail_fast' ELSE j.cancel_by END AS by,
        CASE WHEN j.cancel_requested_at IS NULL THEN 'A member was abandoned.' ELSE j.cancel_reason END AS reason,
        walked.*
    FROM pgjobs_job AS j
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS members,
            max(m.id) AS last,
            coalesce(
                -- What an operator holds in a copy is left alone.
                bool_or(m.finished_at IS NULL AND m.cancel_requested_at IS NULL AND m.hold_fingerprint <> 'adopt'), false
            ) AS goes_on
        FROM (
            SELECT found.id, found.finished_at, found.cancel_requested_at, found.hold_fingerprint
            FROM pgjobs_job AS found
            WHERE found.parent_id IS NOT NULL
              -- Both columns in the order, so that no other index than that of parents has it.
              AND (found.parent_id, found.id) > (j.id, CASE WHEN j.id = %(first)s::bigint THEN %(member)s::bigint ELSE 0 END)
              AND found.parent_id <= j.id
            ORDER BY found.parent_id, found.id
            LIMIT %(members)s::integer
        ) AS m
    ) AS walked
    WHERE j.id = ANY (ARRAY[g.job_id])
      AND NOT g.eager
      AND j.finished_at IS NULL
      AND (
          j.cancel_requested_at < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
          OR (j.cancel_requested_at IS NULL AND g.fail_fast AND g.abandoned > 0)
      )
    LIMIT 1
) AS batch ON true
ORDER BY g.job_id
