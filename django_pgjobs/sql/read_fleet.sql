-- read_fleet: the figures that a leader measured last, and the time without a leader, for metrics.
-- Fence: none (reads).
-- Rows: 1 = the figures as JSON, how many seconds ago they were measured, seconds since the last term; null if none yet.
-- Clock: statement_timestamp().
SELECT
    CASE WHEN %(totals)s::boolean THEN s.figures ELSE s.figures - 'totals' END::text,
    extract(epoch FROM statement_timestamp() - s.measured_at)::float8,
    CASE WHEN l.id IS NOT NULL THEN greatest(extract(epoch FROM statement_timestamp() - l.expires_at), 0)::float8 END
FROM (VALUES (1)) AS one (id)
LEFT JOIN pgjobs_statistic AS s ON s.id = one.id
LEFT JOIN pgjobs_leader_term AS l ON l.id = one.id
