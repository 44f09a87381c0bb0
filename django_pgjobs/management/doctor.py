"""``manage.py pgjobs doctor``: what is wrong or risky in the project and its databases, and what to type."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options

if TYPE_CHECKING:
    from django_pgjobs.doctor.finding import Finding

MOST_PLACES = 5


def add_subcommands(subcommands: object) -> None:
    """Declare ``doctor``."""
    text = "Say what is wrong or risky in the project and its databases, in order of harm, and what to type."
    parser = filters.declare(subcommands, "doctor", examine, text)
    text = "A role that needs the rights of a worker; repeatable (default: the one that connects)."
    parser.add_argument("--role", metavar="NAME", action="append", help=text)
    text = "Also read the source of the project, and say what of its Celery tasks will differ."
    parser.add_argument("--from", choices=["celery"], dest="origin", help=text)
    text = "With --from: a directory or file to read; repeatable (default: the project's apps)."
    parser.add_argument("--source", metavar="PATH", type=Path, action="append", help=text)
    parser.add_argument("--strict", action="store_true", help="Exit with 1 for warnings, too.")
    filters.add_output(parser)


def examine(command: BaseCommand, options: Options) -> None:
    """Print what is found; exit with 1 for an error, with ``--strict`` for a warning."""
    from django_pgjobs.checks.settings import valid_conf  # here: the other subcommands do without
    from django_pgjobs.doctor import celery_code, gather, project  # here: the other subcommands do without
    from django_pgjobs.doctor.finding import Severity, in_order  # here: the other subcommands do without

    if missing := [str(path) for path in options["source"] or () if not path.exists()]:
        raise CommandError(output.plain(f"There is no {', '.join(missing)}."), returncode=output.WRONG)
    found = gather.of_project(project.obstacle())  # before the first connection, as a worker asks it
    aliases = _aliases(options) if valid_conf() is not None else ()
    for alias in aliases:
        found += gather.of_database(alias, _health, options["role"] or [""], databases.shown(alias))
    if options["origin"] is not None:
        found += celery_code.read(options["source"] or _sources())
    found = in_order(found)
    bad = (Severity.ERROR, Severity.WARNING) if options["strict"] else (Severity.ERROR,)
    is_healthy = not any(each.severity in bad for each in found)
    fields = {"healthy": is_healthy, "findings": [each.fields() for each in found]}
    output.answer(command, options, fields, _lines(found, list(map(str, Severity))))
    output.exit_if(not is_healthy)


def _aliases(options: Options) -> Sequence[str]:
    """Return the databases; none if the settings name wrong ones, as a finding says then."""
    try:
        return databases.aliases_of(options)
    except CommandError:
        if options["database"] is not None:
            raise
        return ()


def _health(using: str) -> list[HealthProblem]:
    """Return the problems of ``pgjobs check``, with its limits."""
    from django_pgjobs.management.check import problems_of  # here: the other subcommands do without

    return problems_of(using, Limits())


def _sources() -> list[Path]:
    """Return the directories of the project's own apps and of its settings."""
    paths = [config.path for config in apps.get_app_configs() if config.label != "pgjobs"]
    if name := getattr(settings, "SETTINGS_MODULE", None):
        paths += map(os.path.dirname, filter(None, [sys.modules[name].__file__]))
    found = {Path(path) for path in paths if "site-packages" not in path}
    return sorted(each for each in found if not found.intersection(each.parents))


def _lines(found: Sequence[Finding], severities: Sequence[str]) -> Iterator[str]:
    for each in found:
        at = f"{each.database}: " if each.database else ""
        yield output.plain(f"{each.severity}: {at}{each.id}: {each.what}")
        yield output.plain(f"  Why: {each.why}")
        yield output.plain(f"  Type: {each.cure}")
        if each.where:
            more = f" and {len(each.where) - MOST_PLACES} more" if len(each.where) > MOST_PLACES else ""
            yield output.plain(f"  At: {', '.join(each.where[:MOST_PLACES])}{more}")
    counted = [(severity, sum(each.severity == severity for each in found)) for severity in severities]
    said = ", ".join(f"{number} {severity}{'s' if number > 1 else ''}" for severity, number in counted if number)
    yield f"Found {said}." if said else "Nothing is wrong."
