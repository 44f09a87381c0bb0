"""The audit: a trigger writes every change of a job row and of a lease to a table, as durable as the change itself.

In the tests' own databases only. The tables have no constraint and no index, so that what is wrong can be written too.
``install`` makes them, ``collect`` reads a history out of them and the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import psycopg

from tests.chaos import history as h
from tests.chaos.compound_judging import Called, Compounds, Counted, Part, Remembered
from tests.chaos.journal import Journal

SCHEMA = """
CREATE TABLE chaos_job_audit (
    at timestamptz, txid bigint, op text, job_id bigint, key text, state text, claim_id uuid, attempt integer,
    max_attempts integer, outcome text, ending text, hold text, run_at timestamptz, cancel_requested_at timestamptz
);
CREATE TABLE chaos_claim_audit (
    at timestamptz, txid bigint, op text, claim_id uuid, part smallint, worker uuid, lease_expires_at timestamptz,
    check_at timestamptz, job_ids bigint[]
);
CREATE TABLE chaos_gone (
    at timestamptz, job_id bigint, name text, key text, outcome text, attempt integer, max_attempts integer,
    finished_at timestamptz, flow smallint, parent_id bigint, cancel_by text, target jsonb, needed boolean
);
CREATE TABLE chaos_gone_link (parent_id bigint, job_id bigint, rule text);
CREATE TABLE chaos_gone_attempt (LIKE pgjobs_attempt);
CREATE TABLE chaos_effect (at timestamptz DEFAULT clock_timestamp(), job_id bigint, key text, note text);
CREATE FUNCTION chaos_key(job pgjobs_job) RETURNS text LANGUAGE sql STABLE SET search_path = public AS $$
    -- A job of this package's own is known by its name, and what undoes another by that one's key and its own id.
    SELECT CASE WHEN job.name LIKE 'pgjobs.%' THEN job.name ELSE
        coalesce(job.payload #>> '{kwargs,key}', job.payload #>> '{args,0}')
        || CASE WHEN job.target_id IS NULL THEN '' ELSE '/undo/' || job.id END
    END
$$;
CREATE FUNCTION chaos_audit_gone() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO chaos_gone VALUES (
        clock_timestamp(), OLD.id, OLD.name, chaos_key(OLD), OLD.outcome, OLD.attempt, OLD.max_attempts,
        OLD.finished_at, OLD.flow, OLD.parent_id, OLD.cancel_by, OLD.options -> 'target',
        OLD.flow >= 256
        OR EXISTS (SELECT FROM pgjobs_job AS p WHERE p.id = OLD.parent_id AND (p.finished_at IS NULL OR p.flow >= 256))
        OR EXISTS (
            SELECT FROM pgjobs_link AS l JOIN pgjobs_job AS j ON j.id = l.job_id
            WHERE l.parent_id = OLD.id AND j.finished_at IS NULL
        )
        OR EXISTS (
            SELECT FROM pgjobs_memo AS m JOIN pgjobs_job AS j ON j.id = m.job_id
            WHERE m.kind = 'gather' AND m.finished_at IS NULL AND m.result ->> 'batch' = OLD.parent_id::text
              AND j.finished_at IS NULL
        )
    );
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_audit_link() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO chaos_gone_link VALUES (OLD.parent_id, OLD.job_id, OLD.rule);
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_audit_attempt() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO chaos_gone_attempt VALUES (OLD.*);
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_audit_job() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO chaos_job_audit VALUES (
        clock_timestamp(), pg_current_xact_id()::text::bigint, TG_OP, NEW.id, chaos_key(NEW),
        state(NEW), NEW.claim_id, NEW.attempt, NEW.max_attempts, NEW.outcome, NEW.ending, NEW.hold, NEW.run_at,
        NEW.cancel_requested_at
    );
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_audit_claim() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO chaos_claim_audit VALUES (
        clock_timestamp(), pg_current_xact_id()::text::bigint, TG_OP, NEW.claim_id, NEW.part, NEW.worker,
        NEW.lease_expires_at, NEW.check_at, NEW.job_ids
    );
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_audit AFTER INSERT OR UPDATE ON pgjobs_job FOR EACH ROW EXECUTE FUNCTION chaos_audit_job();
CREATE TRIGGER chaos_audit_gone AFTER DELETE ON pgjobs_job FOR EACH ROW EXECUTE FUNCTION chaos_audit_gone();
CREATE TRIGGER chaos_audit_link AFTER DELETE ON pgjobs_link FOR EACH ROW EXECUTE FUNCTION chaos_audit_link();
CREATE TRIGGER chaos_audit_attempt AFTER DELETE ON pgjobs_attempt FOR EACH ROW EXECUTE FUNCTION chaos_audit_attempt();
CREATE TRIGGER chaos_audit AFTER INSERT OR UPDATE ON pgjobs_claim FOR EACH ROW EXECUTE FUNCTION chaos_audit_claim();
"""

TABLES = (
    "chaos_job_audit", "chaos_claim_audit", "chaos_gone", "chaos_gone_link", "chaos_gone_attempt", "chaos_effect",
)  # fmt: skip

JOB_CHANGES = """
SELECT extract(epoch FROM at)::float8, job_id, key, claim_id::text, attempt, max_attempts, outcome, ending, hold
FROM chaos_job_audit ORDER BY at
"""
LEASES = (
    "SELECT extract(epoch FROM at)::float8, claim_id::text, extract(epoch FROM lease_expires_at)::float8"
    " FROM chaos_claim_audit ORDER BY at"
)
# Whatever is deleted within a minute of its end was not pruned, but lost.
ROWS = """
SELECT id, coalesce(chaos_key(j), ''), j.state, outcome, attempt, max_attempts
FROM pgjobs_job AS j WHERE name NOT LIKE 'pgjobs.%'
UNION ALL
SELECT job_id, coalesce(key, ''), 'gone', outcome, attempt, max_attempts
FROM chaos_gone WHERE name NOT LIKE 'pgjobs.%' AND finished_at <= at - interval '60 s'
"""
# Those of pruned jobs, too.
ATTEMPTS = """
SELECT
    job_id, claim_id::text, number, cause, extract(epoch FROM ended_at)::float8, duration_seconds,
    position('is not charged: it runs again, apart' IN message) > 0
FROM (TABLE pgjobs_attempt UNION ALL TABLE chaos_gone_attempt) AS a
"""
REOPENED = """
SELECT job_id, count(*)
FROM pgjobs_action AS a JOIN pgjobs_action_part AS p ON p.action_id = a.id, unnest(p.job_ids) AS job_id
WHERE a.verb = 'retry' GROUP BY job_id
"""
WAIT_FOR_OTHERS = """
SELECT id FROM pgjobs_job WHERE flow & 16 = 16 UNION ALL SELECT job_id FROM chaos_gone WHERE flow & 16 = 16
"""
REMEMBERING = """
SELECT id FROM pgjobs_job WHERE flow & 32 = 32 UNION ALL SELECT job_id FROM chaos_gone WHERE flow & 32 = 32
"""
PARTS = """
SELECT
    id, name, coalesce(chaos_key(j), ''), outcome, flow, parent_id, target_id, options -> 'target', cancel_by,
    false, false
FROM pgjobs_job AS j
UNION ALL
SELECT job_id, name, coalesce(key, ''), outcome, flow, parent_id, NULL, target, cancel_by, true, needed FROM chaos_gone
"""
MEMOS = """
SELECT job_id, name, kind, extract(epoch FROM finished_at)::float8, error <> '', undo IS NOT NULL, result
FROM pgjobs_memo
"""
LINKS = "SELECT parent_id, job_id, rule FROM pgjobs_link UNION ALL SELECT parent_id, job_id, rule FROM chaos_gone_link"
GATES = "SELECT job_id, pending, total, succeeded, abandoned, cancelled, due FROM pgjobs_gate"
# A ledger row whose jobs have all ended may be left to the next look of rescue; one of an open job may not.
CLAIMS_LEFT = """
SELECT claim_id::text || '/' || part FROM pgjobs_claim AS k
WHERE EXISTS (
    SELECT FROM pgjobs_job AS j WHERE j.id = ANY (k.job_ids) AND j.claim_id = k.claim_id AND j.outcome IS NULL
)
"""
CONNECTIONS_LEFT = (
    "SELECT application_name FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'pgjobs %'"
)


def install(url: str) -> None:
    """Make tables and triggers in a migrated database."""
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute(SCHEMA.encode())


def collect(
    url: str,
    journal: Journal,
    *,
    faults: Iterable[h.Fault] = (),
    processes_left: Iterable[str] = (),
    healed_at: float | None = None,
    recovery_seconds: float = 2.0,
) -> h.History:
    """Read a history from the database and the journal."""
    lines = list(journal.lines())
    with psycopg.connect(url, autocommit=True) as raw:

        def rows(text: str) -> list[Any]:
            return raw.execute(text.encode()).fetchall()

        return h.History(
            registrations=registrations(lines),
            executions=executions(lines),
            changes=[h.Change(*row) for row in rows(JOB_CHANGES)],
            leases=[h.Lease(*row) for row in rows(LEASES)],
            faults=[*faults, *noted_faults(lines)],
            rows=[h.Row(*row) for row in rows(ROWS)],
            attempts=[h.Attempt(*row) for row in rows(ATTEMPTS)],
            claims_left=[row[0] for row in rows(CLAIMS_LEFT)],
            processes_left=list(processes_left),
            connections_left=[row[0] for row in rows(CONNECTIONS_LEFT)],
            reopened=Counter(line["job"] for line in lines if line["what"] == "reopen") | Counter(dict(rows(REOPENED))),
            revivable=frozenset(row[0] for row in rows(WAIT_FOR_OTHERS)),
            remembering=frozenset(row[0] for row in rows(REMEMBERING)),
            forged=frozenset(line["job"] for line in lines if line["what"] == "forged"),
            healed_at=healed_at,
            recovery_seconds=recovery_seconds,
        )


def collect_compounds(url: str, journal: Journal, owners: Collection[str]) -> Compounds:
    """Read what is left of jobs that consist of others. ``owners``: the names of their durable functions."""
    lines = list(journal.lines())
    with psycopg.connect(url, autocommit=True) as raw:

        def rows(text: str) -> list[Any]:
            return raw.execute(text.encode()).fetchall()

        return Compounds(
            parts=[part_of(row) for row in rows(PARTS)],
            memos=[Remembered(*row) for row in rows(MEMOS)],
            effects=[tuple(row) for row in rows("SELECT job_id, key, note FROM chaos_effect")],
            links=[tuple(row) for row in rows(LINKS)],
            gates=[Counted(*row) for row in rows(GATES)],
            called=[Called(line["job"], line["claim"], line["token"]) for line in lines if line["what"] == "called"],
            executions=executions(lines),
            wrong=[(line["key"], line["job"], line["words"]) for line in lines if line["what"] == "wrong"],
            touched=frozenset(row[0] for row in rows("SELECT DISTINCT unnest(job_ids) FROM pgjobs_action_part")),
            forged=frozenset(line["job"] for line in lines if line["what"] == "forged"),
            owners=owners,
        )


def part_of(row: Sequence[Any]) -> Part:
    """Return a row of ``PARTS`` with what it undoes as a pair that can be counted."""
    values = list(row)
    values[7] = None if row[7] is None else tuple(row[7])
    return Part(*values)


def registrations(lines: Iterable[dict[str, Any]]) -> list[h.Registration]:
    """Return what was registered; what has only begun is unknown."""
    fates: dict[str, str] = {}
    for line in lines:
        if line["what"] == "registering":
            fates[line["key"]] = h.UNKNOWN
        elif line["what"] == "registered":
            fates[line["key"]] = line["fate"]
    return [h.Registration(key, fate) for key, fate in fates.items()]


def executions(lines: Iterable[dict[str, Any]]) -> list[h.Execution]:
    """Return every start of a body or a callback with what was seen of it."""
    found: list[h.Execution] = []
    last: dict[tuple[str, str, str, int], h.Execution] = {}
    for line in lines:
        what, at = line["what"], line["wall"] / 1e9
        if what not in ("start", "tick", "end"):
            continue
        who = (line["key"], line["claim"], line["part"], line["pid"])
        if what == "start":
            last[who] = h.Execution(
                line["key"], line["job"], line["claim"], line["attempt"], line["pid"], at, at, line["part"],
                worker=line.get("worker", 0),
            )  # fmt: skip
            found.append(last[who])
        elif who in last:
            last[who].last_seen = at
            last[who].how = line.get("how", "")
    return found


def noted_faults(lines: Iterable[dict[str, Any]]) -> list[h.Fault]:
    """Return the faults that fail points and dying jobs have noted: kills and freezes of their own processes."""
    kinds = {"freeze": h.FREEZE, "kill": h.KILL, "kill_both": h.KILL, "kill_parent": h.KILL, "exit": h.KILL}
    faults = []
    for line in lines:
        if line["what"] == "dying":
            at = line["wall"] / 1e9
            faults.append(h.Fault(h.KILL, at, at, frozenset({line["pid"]})))
        if line["what"] == "failpoint" and line["do"] in kinds:
            at = line["wall"] / 1e9
            pids = frozenset({line["pid"], line["parent"]})
            faults.append(h.Fault(kinds[line["do"]], at, at + 60, pids))
    return faults
