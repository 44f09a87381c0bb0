-- renew_term: continue to lead, or with %(seconds)s = 0 resign.
-- Fence: none (compare-and-set on worker and term: a term that another worker has taken since is left alone).
-- Rows: 1 = still the leader; 0 = another has taken over.
-- Clock: statement_timestamp().
UPDATE pgjobs_leader_term
SET expires_at = statement_timestamp() + make_interval(secs => %(seconds)s::float8)
WHERE id = 1 AND worker = %(worker)s::uuid AND term = %(term)s::bigint
RETURNING term
