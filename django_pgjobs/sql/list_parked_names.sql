-- list_parked_names: the names of parked jobs that this code does not know, however many jobs there are, by one index probe for each name.
-- Fence: none (reads).
-- Rows: one per name, in order, up to a bound.
-- Clock: none.
WITH RECURSIVE parked AS (
    (
        SELECT name
        FROM pgjobs_job
        WHERE hold = 'parked'
        ORDER BY name
        LIMIT 1
    )
    UNION ALL
    SELECT following.name
    FROM parked,
    LATERAL (
        SELECT j.name
        FROM pgjobs_job AS j
        WHERE j.hold = 'parked' AND j.name > parked.name
        ORDER BY j.name
        LIMIT 1
    ) AS following
)
SELECT name FROM parked WHERE name <> ALL (%(known)s::text[]) LIMIT %(limit)s::integer
