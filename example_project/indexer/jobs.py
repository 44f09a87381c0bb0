"""The jobs. Each may run more than once, also twice at the same time, so each writes what it would write again.

``index_file``     one per source file: parses it and replaces its rows. A file that cannot be parsed is given up at
                   once, with the reason, and ``on_abandon`` notes it.
``sum_package``    one per package: fails until all files of the package are there, and is retried with backoff.
``publish_report`` one per edition: comes back by Snooze, which costs no attempt, until everything is there.
``refresh``        one a night, by a cron entry: registers a new edition, unless one is being read.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from django_pgjobs import Abandon, Backoff, Cancel, Cron, JobContext, Snooze, job
from django_pgjobs.decisions import Failure
from example_project.indexer.models import Edition, Module, Package, Symbol
from example_project.indexer.parsing import CannotBeParsed, Found, Source, parse
from example_project.indexer.sources import dotted, locate, package_of, source_files
from example_project.indexer.totals import Totals, count, totals_of
from example_project.indexer.words import words

PATIENCE = timedelta(minutes=15)
"""How long a report waits for its files."""


class NotYet(Exception):
    """Rows that other jobs write are not there yet."""


@job(name="library.index_file", timeout=60, max_attempts=3, backoff=Backoff(1, factor=2))
def index_file(path: str, edition: int) -> dict[str, int]:
    """Parse one file and replace its rows; return what was counted."""
    try:
        source = parse(locate(path))
    except CannotBeParsed as error:
        raise Abandon(f"cannot be parsed: {error}") from None
    with transaction.atomic():
        module = _write_module(
            path,
            edition,
            lines=source.lines,
            imports=source.imports,
            classes=source.count("class"),
            functions=source.count("function", "method"),
            summary=source.summary,
            words=words(dotted(path)),
        )
        _write_symbols(module, source)
    return {"lines": module.lines, "functions": module.functions, "classes": module.classes}


@index_file.describe
def _path(path: str, edition: int) -> str:
    return path


@index_file.on_abandon
def _note_problem(context: JobContext, path: str, edition: int) -> None:
    error = context.error
    reason = error.message if isinstance(error, Failure) else str(error)
    with transaction.atomic():
        module = _write_module(path, edition, problem=reason.removeprefix("Abandon: "), job=context.id)
        Symbol.objects.filter(module=module).delete()


def _write_module(path: str, edition: int, **facts: object) -> Module:
    """Make or replace the row and lock it. Raises Cancel if a newer edition was quicker."""
    nothing = {"lines": 0, "imports": 0, "classes": 0, "functions": 0, "summary": "", "problem": "", "job": None}
    values = {**nothing, **facts, "edition_id": edition, "name": dotted(path), "package": package_of(path)}
    values.setdefault("words", words(dotted(path)))
    module, made = Module.objects.select_for_update().get_or_create(path=path, defaults=values)
    if module.edition_id > edition:
        raise Cancel("a newer edition has read this file")
    if not made:
        for name, value in values.items():
            setattr(module, name, value)
        module.save()
    return module


def _write_symbols(module: Module, source: Source) -> None:
    Symbol.objects.filter(module=module).delete()
    Symbol.objects.bulk_create([_symbol(module, found) for found in source.found], batch_size=2000)


def _symbol(module: Module, found: Found) -> Symbol:
    return Symbol(
        module=module,
        name=found.name,
        kind=found.kind,
        line=found.line,
        summary=found.summary,
        words=words(found.name),
    )


@job(name="library.sum_package", max_attempts=20, backoff=Backoff(1, factor=1.5, limit=10, jitter=0.2))
def sum_package(name: str, edition: int, files: int) -> dict[str, int]:
    """Sum up the ``files`` files of a package. Raises NotYet while some of them have not been read."""
    newest = _check_newest(edition)
    modules = newest.read().filter(package=name)
    sums = count(modules)
    if sums.files < files:
        raise NotYet(f"{sums.files} of {files} files of {name} have been read")
    values = {"edition_id": edition, "files": sums.files, "unreadable": sums.unreadable, "lines": sums.lines}
    Package.objects.update_or_create(name=name, defaults=values)
    return {"files": sums.files, "lines": sums.lines}


@sum_package.describe
def _name(name: str, edition: int, files: int) -> str:
    return name


@job(name="library.publish_report", takes_context=True, priority=-10)
def publish_report(context: JobContext, edition: int) -> Totals:
    """Store the totals of an edition as soon as every file was read or given up; until then come back later."""
    newest = _check_newest(edition)
    read = newest.read().count()
    summed = newest.summed().count()
    context.progress(read + summed, newest.files + newest.packages, f"{read} files, {summed} packages")
    if read < newest.files or summed < newest.packages:
        if timezone.now() - newest.started_at > PATIENCE:
            raise Abandon(f"only {read} of {newest.files} files and {summed} of {newest.packages} packages were read")
        raise Snooze(1)
    totals = totals_of(newest)
    Edition.objects.filter(pk=edition).update(totals=totals, published_at=timezone.now())
    return totals


def _check_newest(edition: int) -> Edition:
    newest = Edition.objects.first()
    if newest is None or newest.pk != edition:
        raise Cancel("there is a newer edition")
    return newest


@job(name="library.refresh", cron=Cron("0 4 * * *", misfire="skip", overlap="skip"))
def refresh() -> int:
    """Register a new edition and return its id. Raises Cancel while another one is being read."""
    from example_project.indexer.indexing import start_edition  # which imports this module

    newest = Edition.objects.first()
    if newest is not None and newest.published_at is None and timezone.now() - newest.started_at <= PATIENCE:
        raise Cancel(f"{newest} is being read")
    edition: int = start_edition(source_files()).pk
    return edition
