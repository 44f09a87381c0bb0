-- arrive_jobs: insert jobs of another database with all that goes with them, held until they are given away there, unless they have arrived before or their key is taken here.
-- Fence: creates (its transaction holds the lock of lock_moving since before the rows were read).
-- Rows: one per job that may not come: its id there.
-- Clock: none.
WITH given AS MATERIALIZED (
    SELECT (g.value #>> '{job,id}')::bigint AS old_id, g.value -> 'job' AS job, g.value AS whole
    FROM jsonb_array_elements(%(rows)s::jsonb) AS g
),
arrived AS MATERIALIZED (
    SELECT (j.options #>> '{move,id}')::bigint AS old_id
    FROM pgjobs_job AS j
    WHERE j.hold = 'moving' AND j.finished_at IS NULL AND j.options #>> '{move,from}' = %(source)s::text
),
judged AS MATERIALIZED (
    SELECT
        given.old_id, given.job, given.whole,
        (
            SELECT true
            FROM pgjobs_job AS rival
            WHERE rival.queue = given.job ->> 'queue'
              AND rival.unique_key = given.job ->> 'unique_key'
              AND rival.unique_key IS NOT NULL
              AND rival.finished_at IS NULL
            LIMIT 1
        ) IS NOT NULL
        OR (
            SELECT true
            FROM jsonb_array_elements(coalesce(nullif(given.whole -> 'windows', 'null'), '[]')) AS window_of
            JOIN pgjobs_key_window AS w
                ON w.queue = (window_of.value ->> 'queue') AND w.key = (window_of.value ->> 'key')
                AND w.begins_at = (window_of.value ->> 'begins_at')::timestamptz
            LIMIT 1
        ) IS NOT NULL AS taken
    FROM given
    WHERE given.old_id NOT IN (SELECT old_id FROM arrived)
),
numbered AS MATERIALIZED (
    SELECT
        judged.whole,
        n.id,
        judged.job || jsonb_build_object(
            'id', n.id, 'hold', 'moving', 'hold_reason', %(words)s::text || judged.old_id, 'waited', false,
            'options', (judged.job -> 'options') - 'move' || jsonb_build_object(
                'move',
                (judged.job #> '{options,move}') - 'to' - 'token' || jsonb_build_object('from', %(source)s::text, 'id', judged.old_id)
            )
        ) AS job
    FROM judged
    CROSS JOIN LATERAL (SELECT nextval(pg_get_serial_sequence('pgjobs_job', 'id')::regclass) AS id, judged.old_id) AS n
    WHERE NOT judged.taken
),
jobs AS (
    -- All columns: what a later migration adds goes with the job, too.
    INSERT INTO pgjobs_job
    SELECT made.*
    FROM numbered
    CROSS JOIN LATERAL jsonb_populate_record(NULL::pgjobs_job, numbered.job) AS made
),
parts AS MATERIALIZED (
    SELECT part.kind, p.value || jsonb_build_object('job_id', numbered.id) AS part
    FROM numbered
    CROSS JOIN (VALUES ('attempts'), ('steps'), ('memos'), ('windows')) AS part (kind)
    CROSS JOIN LATERAL jsonb_array_elements(coalesce(nullif(numbered.whole -> part.kind, 'null'), '[]')) WITH ORDINALITY AS p (value, n)
    ORDER BY numbered.id, p.n
),
history AS (
    INSERT INTO pgjobs_attempt
    SELECT made.*
    FROM parts
    CROSS JOIN LATERAL jsonb_populate_record(
        NULL::pgjobs_attempt, parts.part || jsonb_build_object('id', nextval(pg_get_serial_sequence('pgjobs_attempt', 'id')::regclass))
    ) AS made
    WHERE parts.kind = 'attempts'
),
steps AS (
    INSERT INTO pgjobs_step
    SELECT made.*
    FROM parts
    CROSS JOIN LATERAL jsonb_populate_record(
        NULL::pgjobs_step, parts.part || jsonb_build_object('id', nextval(pg_get_serial_sequence('pgjobs_step', 'id')::regclass))
    ) AS made
    WHERE parts.kind = 'steps'
),
memos AS (
    INSERT INTO pgjobs_memo
    SELECT made.*
    FROM parts
    CROSS JOIN LATERAL jsonb_populate_record(
        NULL::pgjobs_memo, parts.part || jsonb_build_object('id', nextval(pg_get_serial_sequence('pgjobs_memo', 'id')::regclass))
    ) AS made
    WHERE parts.kind = 'memos'
),
windows AS (
    INSERT INTO pgjobs_key_window
    SELECT made.*
    FROM parts
    CROSS JOIN LATERAL jsonb_populate_record(NULL::pgjobs_key_window, parts.part) AS made
    WHERE parts.kind = 'windows'
)
SELECT old_id FROM judged WHERE taken
