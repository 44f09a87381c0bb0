"""The audit: a trigger writes every change of a job row and of a lease to a table, as durable as the change itself.

In the tests' own databases only. The tables have no constraint and no index, so that what is wrong can be written too.
``install`` makes them, ``collect`` reads a history out of them and the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import psycopg

from tests.chaos import history as h
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
CREATE FUNCTION chaos_audit_job() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO chaos_job_audit VALUES (
        clock_timestamp(), pg_current_xact_id()::text::bigint, TG_OP, NEW.id,
        coalesce(NEW.payload #>> '{kwargs,key}', NEW.payload #>> '{args,0}'),
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
CREATE TRIGGER chaos_audit AFTER INSERT OR UPDATE ON pgjobs_claim FOR EACH ROW EXECUTE FUNCTION chaos_audit_claim();
"""

TABLES = ("chaos_job_audit", "chaos_claim_audit")

JOB_CHANGES = """
SELECT extract(epoch FROM at)::float8, job_id, key, claim_id::text, attempt, max_attempts, outcome, ending, hold
FROM chaos_job_audit ORDER BY at
"""
LEASES = (
    "SELECT extract(epoch FROM at)::float8, claim_id::text, extract(epoch FROM lease_expires_at)::float8"
    " FROM chaos_claim_audit ORDER BY at"
)
ROWS = """
SELECT id, coalesce(payload #>> '{kwargs,key}', payload #>> '{args,0}', ''), j.state, outcome, attempt, max_attempts
FROM pgjobs_job AS j
"""
ATTEMPTS = (
    "SELECT job_id, claim_id::text, number, cause FROM pgjobs_attempt"
    " WHERE position('is not charged: it runs again, apart' IN message) = 0"
)
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
            reopened=Counter(line["job"] for line in lines if line["what"] == "reopen"),
            healed_at=healed_at,
            recovery_seconds=recovery_seconds,
        )


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
                line["key"], line["job"], line["claim"], line["attempt"], line["pid"], at, at, line["part"]
            )
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
