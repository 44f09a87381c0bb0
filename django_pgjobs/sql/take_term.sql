-- take_term: become the leader, if no worker leads or the last term has expired.
-- Fence: none (compare-and-set on the one row: an unexpired term is left alone).
-- Rows: 1 = the number of the new term, and the seconds without a leader, null if there never was one; 0 = another worker leads.
-- Clock: statement_timestamp().
WITH before AS MATERIALIZED (
    SELECT l.expires_at FROM pgjobs_leader_term AS l WHERE l.id = 1
)
INSERT INTO pgjobs_leader_term AS t (id, term, worker, worker_name, taken_at, expires_at)
SELECT
    1, 1, %(worker)s::uuid, %(worker_name)s::text, statement_timestamp(),
    statement_timestamp() + make_interval(secs => %(seconds)s::float8)
WHERE NOT EXISTS (
    -- Other workers ask every other second: they only read, and neither lock nor write the row.
    SELECT FROM before AS b WHERE b.expires_at > statement_timestamp()
)
ON CONFLICT (id) DO UPDATE
SET term = t.term + 1,
    worker = excluded.worker,
    worker_name = excluded.worker_name,
    taken_at = excluded.taken_at,
    expires_at = excluded.expires_at
WHERE t.expires_at <= statement_timestamp()
RETURNING
    term,
    (SELECT extract(epoch FROM statement_timestamp() - b.expires_at)::float8 FROM before AS b WHERE isfinite(b.expires_at))
