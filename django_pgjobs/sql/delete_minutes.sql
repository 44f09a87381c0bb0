-- delete_minutes: delete hours of the fleet and of the trend, and depths, whose time is over.
-- Fence: none (numbers decide nothing).
-- Rows: 1 = how many rows of both were deleted.
-- Clock: statement_timestamp().
WITH hours AS (
    DELETE FROM pgjobs_minute AS m
    WHERE m.worker IN (%(fleet)s::uuid, %(trend)s::uuid)
      AND m.minute < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    RETURNING 1
),
depths AS (
    DELETE FROM pgjobs_depth AS d
    WHERE d.minute < statement_timestamp() - make_interval(secs => %(seconds)s::float8)
    RETURNING 1
)
SELECT (SELECT count(*) FROM hours) + (SELECT count(*) FROM depths)
