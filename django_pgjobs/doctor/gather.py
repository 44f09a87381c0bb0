"""Ask all probes, of the project and of each of its databases, and sort what they find."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from django_pgjobs.checks.settings import valid_conf
from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis.problem import HealthProblem
from django_pgjobs.doctor import project, server
from django_pgjobs.doctor.finding import Finding, Severity, probed
from django_pgjobs.registering.served import served_schemas
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import at_read_committed, configure, on
from django_pgjobs.store.own_connection import cut, own_wrapper, use_autocommit
from django_pgjobs.store.schemas import quoted_name

MOST_NAMED = 5
SECONDS = 5.0
WAYS = {"connect_timeout": 5, "application_name": "pgjobs doctor"}

CURES = {
    "migrations": "manage.py migrate",
    "no_worker": "manage.py runjobs --queues {0.queue}",
    "leader": "manage.py runjobs",
    "overdue": "manage.py runjobs",
    "copied": "manage.py pgjobs adopt",
    "latency": "manage.py pgjobs top",
    "silent": "manage.py pgjobs workers",
    "crashed": "manage.py pgjobs workers",
    "cron": "manage.py pgjobs crons list",
    "cron_missing": "manage.py pgjobs crons list",
    "failing": "manage.py pgjobs list --name {0.name} --state {0.list}",
}
"""The code of a problem of ``pgjobs check`` → what to type; of others the list of their jobs."""

FIRST = ("database", "migrations")
"""Problems that come first: until they are cured, the tables cannot be read."""

Health = Callable[[str], Iterable[HealthProblem]]


def of_project(obstacle: str) -> list[Finding]:
    """Return what is wrong with the project; ``obstacle``: what keeps this process from being forked."""
    if valid_conf() is None:  # nothing else can be judged by such settings
        return probed("checks", project.checks)
    probes: dict[str, Callable[[], Iterable[Finding]]] = {"fork": partial(project.fork, obstacle), **project.PROBES}
    return [found for name, probe in probes.items() for found in probed(name, probe)]


def of_database(using: str, health: Health, roles: Sequence[str], alias: str) -> list[Finding]:
    """Return what is wrong with a database; ``alias``: its name where several are shown."""
    if connections[using].vendor != "postgresql":
        return []  # pgjobs.E009
    patient = server.Patient(using, roles)
    try:
        with _connected(using):
            if get_conf().schemas is None:
                found = _examined(patient, health, server.OF_THE_SERVER)
            else:
                first = {name: probe for name, probe in server.OF_THE_SERVER.items() if probe is not server.grants}
                found = _probed_each(patient, first)
                found += _in_schemas(patient, health)
    except (DatabaseError, OSError) as error:
        found = [_unreachable(using, error)]
    return [_named(each, alias) for each in found]


def _named(finding: Finding, alias: str) -> Finding:
    """Return it with the alias, in its cure too if that is a command."""
    is_command = alias and finding.cure.startswith("manage.py ") and "--database" not in finding.cure
    cure = f"{finding.cure} --database {alias}" if is_command else finding.cure
    return replace(finding, database=alias, cure=cure)


def _in_schemas(patient: server.Patient, health: Health) -> list[Finding]:
    """Return what is wrong in the schemas that ``SCHEMAS`` names; once, if several have the same."""
    found: dict[Finding, list[str]] = {}
    try:
        served = served_schemas()
    except ImproperlyConfigured as error:
        why = "No worker knows which schemas to serve."
        return [Finding("schemas", Severity.ERROR, one_line(error), why, 'PGJOBS["SCHEMAS"]: a list of names from it')]
    for schema in served:
        for each in _examined(replace(patient, schema=schema), health, {"grants": server.grants}):
            found.setdefault(each, []).append(schema)
    return [_of_schemas(each, names) for each, names in found.items()]


def _of_schemas(finding: Finding, names: Sequence[str]) -> Finding:
    some = f"{', '.join(names[:MOST_NAMED])}{', …' if names[MOST_NAMED:] else ''}"
    cure = finding.cure
    if cure.endswith(";"):
        cure = f"SET search_path = {quoted_name(names[0])}; {cure}"
    what = f"In schema {some}: " if len(names) == 1 else f"In {len(names)} schemas ({some}): "
    return replace(finding, what=f"{what}{finding.what}", cure=cure)


def _unreachable(using: str, error: BaseException) -> Finding:
    what, why = f"{using!r} does not answer: {one_line(error)}", "Nothing is registered or run while it is so."
    return Finding("database", Severity.ERROR, what, why, f"manage.py dbshell --database {using}")


@contextmanager
def _connected(using: str) -> Iterator[None]:
    """Let the alias lead to a connection of our own: to none of a pool, and given up soon if the server is silent."""
    before = connections[using]
    connections[using] = wrapper = own_wrapper(using, {}, WAYS)
    try:
        wrapper.ensure_connection()
        use_autocommit(wrapper)
        yield
    finally:
        wrapper.close()
        connections[using] = before


def _examined(patient: server.Patient, health: Health, first: Mapping[str, server.Probe]) -> list[Finding]:
    """Return what ``pgjobs check`` and the ``first`` probes find, then those of the tables, if there are any."""
    problems: list[HealthProblem] = []

    def ask() -> Iterator[Finding]:
        problems.extend(each for each in health(patient.using) if not each.is_note)
        yield from map(_of_health, problems)

    found = _probed_each(patient, {"health": lambda _: ask(), **first})
    if any(each.code in FIRST for each in problems):
        return found
    return found + _probed_each(patient, server.OF_THE_TABLES)


def _probed_each(patient: server.Patient, probes: Mapping[str, server.Probe]) -> list[Finding]:
    return [found for name, probe in probes.items() for found in probed(name, partial(_in_time, patient, probe))]


def _in_time(patient: server.Patient, probe: server.Probe) -> Iterator[Finding]:
    """Let a probe look in a transaction that writes nothing, for some seconds. Raises what it raises."""
    using, wrapper = patient.using, connections[patient.using]
    wrapper.ensure_connection()
    timer = threading.Timer(2 * SECONDS, cut, [wrapper.connection])
    timer.daemon = True
    timer.start()
    settings = {"statement_timeout": f"{SECONDS:g}s", "transaction_read_only": "on"}
    if patient.schema:
        settings["search_path"] = quoted_name(patient.schema)
        if hasattr(wrapper, "set_schema"):
            wrapper.set_schema(patient.schema)
    try:
        with at_read_committed(using):
            configure(on(using), settings, local=True)
            yield from probe(patient)
    finally:
        timer.cancel()
        if wrapper.connection is not None and wrapper.connection.closed:
            wrapper.close()  # it was cut, or has ended: the next probe opens another


def _of_health(problem: HealthProblem) -> Finding:
    cure = CURES.get(problem.code) or (f"manage.py pgjobs list --state {problem.list}" if problem.list else "")
    return Finding(
        problem.code,
        Severity.ERROR,
        problem.text,
        "Jobs do not run, or fail, while it is so.",
        cure.format(problem) or "manage.py pgjobs top",
    )
