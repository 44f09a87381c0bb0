-- remove_worker: delete the heartbeat of a worker that leaves this schema for a while, unless it still has claims there.
-- Fence: none (a heartbeat grants no right).
-- Rows: 1 if it was deleted, no content; none if a claim is left, whose rescue is to say whose it was.
-- Clock: none.
DELETE FROM pgjobs_heartbeat AS h
WHERE h.id = %(id)s::uuid AND NOT EXISTS (SELECT FROM pgjobs_claim AS k WHERE k.worker = h.id)
RETURNING 1
