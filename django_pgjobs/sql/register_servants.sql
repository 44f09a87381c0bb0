-- register_servants: register jobs of ours, each for a job that it serves: in the queue of ours, with its headers; but for one with a key no second one.
-- Fence: none (creates rows that no one else sees yet).
-- Rows: one per job registered, with the workers to wake.
-- Clock: statement_timestamp().
INSERT INTO pgjobs_job (
    name, queue, priority, max_attempts, payload, headers, run_at, key, key_scope, unique_key, target_id
)
SELECT
    s.name, 'pgjobs', s.priority, s.max_attempts, jsonb_build_object('args', s.args, 'kwargs', jsonb_build_object()),
    nullif(j.headers - 'task', '{}'), statement_timestamp(),
    s.key, CASE WHEN s.key IS NULL THEN '' ELSE 'until_finished' END, s.key, s.target_id
FROM json_to_recordset(%(servants)s::json) AS s (
    name text, owner bigint, args jsonb, priority smallint, max_attempts integer, key text, target_id bigint
)
JOIN pgjobs_job AS j ON j.id = ANY (ARRAY[s.owner])
ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND finished_at IS NULL DO NOTHING
RETURNING id, queue, priority
