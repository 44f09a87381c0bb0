"""Probes of one database: the server, the role, our tables and the workers that serve them.

Each is called in a read-only transaction of its own, with a time limit. The statements read catalogs, or a bounded
number of rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from django.db.models import Sum, UniqueConstraint
from django.db.models.functions import Now

from django_pgjobs import __version__
from django_pgjobs.checks.names import check_distributed
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.diagnosis.health import known_workers
from django_pgjobs.diagnosis.in_flight import Survey
from django_pgjobs.doctor.finding import NOT_READ, Finding, Severity
from django_pgjobs.doctor.project import own_definitions
from django_pgjobs.inspection.words import grouped, span
from django_pgjobs.models import Heartbeat
from django_pgjobs.models.numbers import Minute
from django_pgjobs.presentation.wording import size
from django_pgjobs.running.worker import SUPERVISOR_CONNECTIONS
from django_pgjobs.states import Outcome
from django_pgjobs.store import examining, vacuuming
from django_pgjobs.store.database import PINS, Database, configure, on
from django_pgjobs.values.retention import HOUR

ERROR, WARNING, NOTE = Severity

VERSIONS = (15, 18)
CLOCK_SECONDS = 1.0
CROWDED = 0.9
CHANGED_ROWS = 50_000
SNAPSHOT_SECONDS = 3600.0
MOST_JOBS = 20_000
BIG_BYTES, GROWTH = 10_000_000_000, 10
"""The tables will be large if they grow beyond so many bytes, and so many times over."""

PARAMETERS = {"pgjobs_job_claim_order": "deduplicate_items = off"}
"""Index → the storage parameters that its migration sets."""


@dataclass(frozen=True, slots=True)
class Patient:
    """A database that is examined; ``roles``: those that need rights, an empty name is the one that asks.

    ``schema``: the one of several that is examined.
    """

    using: str
    roles: Sequence[str]
    schema: str = ""

    @property
    def db(self) -> Database:
        """Django's connection, as statements use it."""
        return on(self.using)

    @property
    def tables(self) -> list[str]:
        """Our tables."""
        return [model._meta.db_table for model in _models()]


def _models() -> list[Any]:
    return list(apps.get_app_config("pgjobs").get_models())


def server(patient: Patient) -> Iterator[Finding]:
    """Yield what is wrong with the version, the clocks, the way to the server, and its role."""
    sent = time.time()
    found = examining.read_server(patient.db)
    took = time.time() - sent
    if not VERSIONS[0] <= found.version <= VERSIONS[1]:
        yield Finding(
            "server_version", ERROR if found.version < VERSIONS[0] else NOTE,
            f"The server is PostgreSQL {found.version}; {VERSIONS[0]} to {VERSIONS[1]} are supported.",
            "Statements may fail, or have untested plans.",
            f"pg_upgrade, to PostgreSQL {VERSIONS[1]}",
        )  # fmt: skip
    if found.is_standby:
        yield Finding(
            "read_only", ERROR, "The server is a standby.",
            "Nothing can be registered, and no worker claims a job.",
            "DATABASES: the host of the primary, or OPTIONS = {'target_session_attrs': 'read-write'}",
        )  # fmt: skip
    off = sent + took / 2 - found.now
    if abs(off) > CLOCK_SECONDS + took / 2:
        yield Finding(
            "clock", WARNING,
            f"The clock of this machine is {span(abs(off))} {'ahead of' if off > 0 else 'behind'} the server's.",
            "Workers go by the server's, so a run_at or a deadline that is computed here is off by as much.",
            "timedatectl set-ntp true",
        )  # fmt: skip
    wrapper = connections[patient.using]
    if found.pid != wrapper.connection.info.backend_pid:
        cursors = wrapper.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        yield Finding(
            "pooler", NOTE, f"{patient.using!r} leads through a pooler.",
            "If it pools transactions, workers cannot LISTEN there, so a job starts up to a second later"
            + ("." if cursors else "; and .iterator() in jobs and requests fails, or reads what others have opened."),
            "DATABASE_URL of the server itself, where workers run" if cursors
            else f'DATABASES["{patient.using}"]["DISABLE_SERVER_SIDE_CURSORS"] = True',
        )  # fmt: skip
    level = getattr(wrapper, "isolation_level", None)
    if level not in (None, IsolationLevel.READ_COMMITTED):
        yield _isolation(level.name, f'del DATABASES["{patient.using}"]["OPTIONS"]["isolation_level"]')


def _isolation(level: str, cure: str) -> Finding:
    return Finding(
        "isolation", WARNING,
        f"Transactions begin at {level.replace('_', ' ').upper()}.",
        "Jobs and requests that meet at a row fail with 40001 there, and are to be tried again by their callers.",
        cure,
    )  # fmt: skip


WANTED = {
    "autovacuum": "on",
    "track_counts": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}


def settings(patient: Patient) -> Iterator[Finding]:
    """Yield settings of the server, the database or the role that harm."""
    found = examining.read_settings(patient.db, list(WANTED))
    facts = examining.read_server(patient.db)
    for name, good in WANTED.items():
        setting = found[name]
        if setting.value == good:
            continue
        at = {
            "user": f"ALTER ROLE {facts.role} RESET {name};",
            "database": f"ALTER DATABASE {facts.database} RESET {name};",
            "database user": f"ALTER ROLE {facts.role} IN DATABASE {facts.database} RESET {name};",
            "client": f'OPTIONS of DATABASES["{patient.using}"], without {name}',
        }
        cure = at.get(setting.source, f"ALTER SYSTEM SET {name} = '{good}'; SELECT pg_reload_conf();")
        if name == "default_transaction_isolation":
            yield _isolation(setting.value, cure)
        elif name == "default_transaction_read_only":
            why = "Nothing can be registered, and no worker claims a job."
            yield Finding("read_only", ERROR, f"{name} is {setting.value}.", why, cure)
        else:
            why = "Autovacuum does nothing then: tables grow, plans go by old figures, and transaction ids run out."
            yield Finding("autovacuum", ERROR, f"{name} is {setting.value}.", why, cure)


def schemas(patient: Patient) -> Iterator[Finding]:
    """Yield schemas that hide each other's tables, or where every role may create what our statements call."""
    found = examining.read_schemas(patient.db)
    if len(found) > 1:
        first, *others = [name for name, _ in found]
        yield Finding(
            "schemas", WARNING,
            f"Several schemas on the search_path have the tables: {first} is used, {', '.join(others)} not.",
            "A worker whose search_path has another order runs other jobs than those that are registered here.",
            "one search_path for all workers and requests, with one of these schemas: SHOW search_path",
        )  # fmt: skip
    for name in [name for name, is_open in found if is_open]:
        yield Finding(
            "open_schema", WARNING, f"Every role may create objects in schema {name}.",
            "A function there may be called in place of a built-in one, with the rights of a worker.",
            f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC;",
        )  # fmt: skip


def grants(patient: Patient) -> Iterator[Finding]:
    """Yield the rights that a role lacks."""
    by_role: dict[str, dict[tuple[str, str], list[str]]] = {}
    for each in examining.read_grants(
        patient.db, patient.roles, [*patient.tables, "django_migrations"], is_bare=bool(patient.schema)
    ):
        by_role.setdefault(each.role, {}).setdefault((each.kind, each.rights), []).append(each.name)
    for role, missing in by_role.items():
        count = sum(map(len, missing.values()))
        first = f"{next(iter(missing))[1]} on {next(iter(missing.values()))[0]}"
        yield Finding(
            "grants", ERROR, f"Role {role} lacks rights on {count} objects, such as {first}.",
            "Statements fail with permission denied; without USAGE on the schema a worker waits for migrate.",
            " ".join(
                f"GRANT {rights} ON {kind} {', '.join(names)} TO {role};" for (kind, rights), names in missing.items()
            ),
        )  # fmt: skip


def connections_left(patient: Patient) -> Iterator[Finding]:
    """Yield that the workers, or the one that these settings describe, need more connections than there are."""
    conf, spare = get_conf(), SUPERVISOR_CONNECTIONS + 1
    slots = conf.async_slots if any(each.is_async for each in registry.definitions()) else 0
    alive = list(Heartbeat.objects.using(patient.using).live().values_list("processes", "threads"))
    workers = alive or [(conf.processes, conf.threads)]
    needed = sum(processes * (threads + slots) + spare for processes, threads in workers)
    facts = examining.read_server(patient.db)
    exceeded = [each for each in examining.read_bounds(patient.db) if needed + each.others > CROWDED * each.most]
    for bound in sorted(exceeded, key=lambda each: each.most / (needed + each.others))[:1]:
        enough = round((needed + bound.others) / CROWDED) + 1
        which = {"ROLE": f"Role {facts.role}", "DATABASE": f"Database {facts.database}"}.get(bound.kind, "The server")
        raised = {
            "ROLE": f"ALTER ROLE {facts.role} CONNECTION LIMIT {enough};",
            "DATABASE": f"ALTER DATABASE {facts.database} CONNECTION LIMIT {enough};",
        }
        room = int((CROWDED * bound.most - bound.others) / len(workers)) - spare
        processes = max(1, room // conf.threads)
        fewer = f"manage.py runjobs --processes {processes} --threads {min(room, conf.threads)}"
        larger = f"ALTER SYSTEM SET max_connections = {enough + 10}; and a restart of the server"
        many = f"{len(alive)} workers" if alive else "The worker that the settings describe"
        yield Finding(
            "connections", ERROR if needed + bound.others > bound.most else WARNING,
            f"{many} may need {needed} connections, others have {bound.others}. {which} allows {bound.most}.",
            "Beyond that a connection is refused: jobs fail, requests too, and leases run out.",
            raised.get(bound.kind) or (fewer if room >= 1 and not slots else larger),
        )  # fmt: skip


def upkeep(patient: Patient) -> Iterator[Finding]:
    """Yield tables that are not vacuumed or analysed."""
    found = examining.read_upkeep(patient.db, patient.tables)
    if off := [each.name for each in found if each.off]:
        yield Finding(
            "autovacuum", ERROR, f"Autovacuum is off for {', '.join(off)}.",
            "Dead rows stay, and plans go by old figures.",
            " ".join(f"ALTER TABLE {name} RESET (autovacuum_enabled);" for name in off),
        )  # fmt: skip
    if stale := [each.name for each in found if each.changed > max(CHANGED_ROWS, each.rows)]:
        yield Finding(
            "statistics", WARNING, f"The statistics of {', '.join(stale)} are of another time.",
            "Pages and lists of operators, and your own queries, get plans for a table that is no more.",
            f"ANALYZE {', '.join(stale)};",
        )  # fmt: skip
    role, version = (facts := examining.read_server(patient.db)).role, facts.version
    dead = {name: vacuuming.read_dead(patient.db, name) for name in vacuuming.VACUUMS}
    if refused := [name for name, each in dead.items() if each is not None and not each.allowed]:
        right, later = f"GRANT MAINTAIN ON {', '.join(refused)} TO {role};", f"pg_upgrade, to PostgreSQL {VERSIONS[1]}"
        yield Finding(
            "vacuum_right", NOTE, f"Role {role} may not VACUUM {', '.join(refused)}.",
            "Autovacuum alone does it then, a minute later at best: a busy queue grows by gigabytes until then.",
            right if version >= 17 else f"{later}, which has GRANT MAINTAIN; until then leave it to autovacuum",
        )  # fmt: skip


def retention(patient: Patient) -> Iterator[Finding]:
    """Yield that ended jobs are never deleted, or that many more will be kept than there are now."""
    kept, keep_less = get_conf().retention, 'PGJOBS = {"RETENTION": {"succeeded": timedelta(hours=24)}}'
    if kept.succeeded is None:
        yield Finding(
            "retention", WARNING, "Jobs that succeeded are never deleted.",
            "The tables grow until the disk is full.", keep_less,
        )  # fmt: skip
        return
    hour = Minute.objects.using(patient.using).filter(minute__gte=Now() - timedelta(hours=1))
    ended = hour.filter(outcome=Outcome.SUCCEEDED).aggregate(jobs=Sum("jobs"))["jobs"] or 0
    [table] = examining.read_upkeep(patient.db, ["pgjobs_job"])
    in_the_end = int(table.bytes / max(table.rows, 1.0) * ended * kept.succeeded / HOUR)
    if in_the_end > max(BIG_BYTES, GROWTH * table.bytes):
        yield Finding(
            "retention", WARNING,
            f"At the rate of the last hour pgjobs_job will have {size(in_the_end)}; now it has {size(table.bytes)}.",
            f"Jobs that succeeded are kept for {span(kept.succeeded)}: the disk must have room for them.",
            keep_less,
        )  # fmt: skip


def indexes(patient: Patient) -> Iterator[Finding]:
    """Yield indexes that cannot be used, and those that are not there."""
    found = examining.read_indexes(patient.db, patient.tables)
    ours = {each.name: (model, each) for model in _models() for each in _indexes_of(model)}
    for index in [each for each in found if not each.valid]:
        yield Finding(
            "index_invalid", ERROR, f"Index {index.quoted} of {index.table} is invalid.",
            "No query uses it and every write maintains it: a CREATE INDEX CONCURRENTLY has failed.",
            f"{'REINDEX' if index.name in ours else 'DROP'} INDEX CONCURRENTLY {index.quoted};",
        )  # fmt: skip
    editor = connections[patient.using].schema_editor(collect_sql=True)
    present = {each.table for each in found}
    for name in sorted(ours.keys() - {each.name for each in found}):
        model, index = ours[name]
        if model._meta.db_table in present:
            yield Finding(
                "index_missing", ERROR, f"Index {name} of {model._meta.db_table} is not there.",
                "Statements that rely on it read the whole table, or register what must not be there twice.",
                _made_beside(str(index.create_sql(model, editor)))
                + (f" ALTER INDEX {name} SET ({PARAMETERS[name]});" if name in PARAMETERS else ""),
            )  # fmt: skip


def _made_beside(sql: str) -> str:
    """Return how to make an index, or a constraint and its index, while others write."""
    columns = r"ALTER TABLE (\S+) ADD CONSTRAINT (\S+) UNIQUE((?: NULLS NOT DISTINCT)?) (\(.+\))"
    made = re.sub(
        columns, r"CREATE UNIQUE INDEX \2 ON \1 \4\3; ALTER TABLE \1 ADD CONSTRAINT \2 UNIQUE USING INDEX \2", sql
    )
    return f"{made.replace('INDEX', 'INDEX CONCURRENTLY', 1)};"


def _indexes_of(model: Any) -> list[Any]:
    unique = [each for each in model._meta.constraints if isinstance(each, UniqueConstraint)]
    return [*model._meta.indexes, *unique]


def snapshots(patient: Patient) -> Iterator[Finding]:
    """Yield what keeps the rows of ended jobs from being removed."""
    cures = {
        "transaction": "SELECT pg_terminate_backend({});",
        "prepared": "COMMIT PREPARED {0}, if its coordinator says so, or ROLLBACK PREPARED {0}",
        "slot": "start its reader; only if none is to come back, SELECT pg_drop_replication_slot({})",
    }
    for each in examining.read_snapshots(patient.db, seconds=SNAPSHOT_SECONDS):
        if each.kind == "hidden":
            yield Finding(
                NOT_READ, NOTE, f"Role {each.name} cannot see since when transactions of {each.owner} are open.",
                "An old one keeps dead rows, and is not named here.", f"GRANT pg_read_all_stats TO {each.name};",
            )  # fmt: skip
            continue
        since = "" if each.seconds is None else f", open for {span(each.seconds)}"
        yield Finding(
            "snapshot", WARNING, f"An old {each.kind}: {each.name} of {each.owner}{since}.",
            "No VACUUM removes what has died since: the tables grow with each job.",
            cures[each.kind].format(each.name),
        )  # fmt: skip


def workers(patient: Patient) -> Iterator[Finding]:
    """Yield queues that no worker serves, and workers of another version."""
    alive = [each for each in known_workers(patient.db) if each.live]
    named = {each.queue for each in own_definitions()} | {*(get_conf().queues or ())}
    unserved = sorted(queue for queue in named if alive and not any(each.serves(queue) for each in alive))
    if unserved:
        yield Finding(
            "queue_unserved", WARNING, f"No worker serves {', '.join(unserved)}.",
            "The code declares jobs for these queues, which would not run.",
            f"manage.py runjobs --queues {','.join(unserved)}",
        )  # fmt: skip
    rows = Heartbeat.objects.using(patient.using).live().exclude(version=__version__)
    if others := dict(rows.order_by("name").values_list("name", "version")):
        listed = ", ".join(f"{name} {version}" for name, version in list(others.items())[:5])
        yield Finding(
            "versions", WARNING, f"Workers have another version than {__version__}: {listed}.",
            "Two neighbouring versions work side by side during a deploy; others may not.",
            f"manage.py pgjobs workers drain {' '.join(others)}",
        )  # fmt: skip


def in_flight(patient: Patient) -> Iterator[Finding]:
    """Yield that the code here does not fit what waits; looks at the first jobs only."""
    configure(patient.db, PINS, local=True)
    misfits = [each for each in Survey(patient.db, patient.using).run(MOST_JOBS).findings if not each.is_note]
    if misfits:
        first = misfits[0]
        yield Finding(
            "in_flight", ERROR,
            f"The code does not fit what waits, in {len(misfits)} ways: {first.name}: {grouped(first.jobs)} "
            f"{first.fate}: {first.text}",
            "Such jobs are parked, or do other things than when they were registered.",
            "manage.py pgjobs check --in-flight",
        )  # fmt: skip


def distributed(patient: Patient) -> Iterator[Finding]:
    """Yield that Citus has distributed the tables."""
    for found in check_distributed(patient.using):
        yield Finding(
            found.id or "", WARNING, found.msg, "Limits of speed show sooner.",
            found.hint or "",
        )  # fmt: skip


Probe = Callable[[Patient], Iterator[Finding]]

OF_THE_SERVER: dict[str, Probe] = {"server": server, "settings": settings, "schemas": schemas, "grants": grants}
OF_THE_TABLES: dict[str, Probe] = {
    "indexes": indexes, "connections": connections_left, "upkeep": upkeep, "workers": workers, "in_flight": in_flight,
    "snapshots": snapshots, "retention": retention, "distributed": distributed,
}  # fmt: skip
"""Probes that need the migrated tables, and rights on them."""
