-- confirm_jobs: note that this worker's code knows these jobs, with these fingerprints.
-- Fence: none (writes what the newest code says; without overwrite it only refreshes what agrees).
-- Rows: one per job written, its name.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_known_job AS k (name, fingerprint, confirmed_at)
SELECT given.name, given.fingerprint, statement_timestamp()
FROM unnest(%(names)s::text[], %(fingerprints)s::text[]) AS given (name, fingerprint)
ORDER BY given.name
ON CONFLICT (name) DO UPDATE
SET fingerprint = excluded.fingerprint, confirmed_at = statement_timestamp()
WHERE (
    k.fingerprint = excluded.fingerprint
    AND k.confirmed_at < statement_timestamp() - make_interval(secs => %(fresh)s::float8)
) OR (
    k.fingerprint <> excluded.fingerprint
    AND (%(overwrite)s::boolean OR k.confirmed_at < statement_timestamp() - make_interval(secs => %(stale)s::float8))
)
RETURNING k.name
