"""The jobs. Each may run more than once, also twice at the same time, so each writes what it would write again.

``index_file``     one per source file: parses it and replaces its rows. A file that cannot be parsed is given up at
                   once, with the reason, and ``on_abandon`` notes it.
``sum_package``    one per package, when all its files are *settled*: read or given up. Returns the package's totals.
``publish_report`` one per edition, when all packages have *succeeded*: takes what they returned, and publishes the sum.
                   A durable function: it waits for an approval, up to a week, and no worker waits with it. If it is
                   refused, or nobody approves it in time, jobs undo its steps, the latest first.
``note_failure``   one per edition, when ``publish_report`` has *failed*: notes why there is no report. Mostly nobody
                   needs it, and it is cancelled.
``refresh``        one a night, by a cron entry: registers a new edition, unless one is being read or to be approved.

The first four are an edition's flow (``indexing.flow_of``). Nothing polls: the end of the last file releases its
package, and the end of the last package releases the report.

An unreadable file is a failed node, not a success with a remark. So people find it in the admin: among the abandoned
jobs, and on the page of the flow, whose own row ends as abandoned, too: "3 of 1,812 members did not succeed". The rules
keep that from spoiling the rest: a package needs its files settled, so the report comes all the same. Return the
problem instead of raising ``Abandon``, as ``{"problem": …}``, if nobody has to look at it; then the flow succeeds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NotRequired, TypedDict

from django.db import transaction
from django.utils import timezone

from django_pgjobs import Abandon, Backoff, Cancel, Cron, Event, JobContext, job
from django_pgjobs.decisions import Failure
from django_pgjobs.models import EventState, Job
from example_project.indexer.models import Edition, Module, Package, Symbol
from example_project.indexer.parsing import CannotBeParsed, Found, Source, parse
from example_project.indexer.sources import dotted, locate, package_of, source_files
from example_project.indexer.totals import Totals, add_up, totals_of
from example_project.indexer.words import words

TIME_TO_APPROVE = timedelta(days=7)


class Verdict(TypedDict):
    """What somebody sends who has looked at a report: ``{"approved": true}``."""

    approved: bool
    reason: NotRequired[str]


approval: Event[Verdict] = Event("library.approval")
"""Sent for an edition, by its id: ``approval.send(7, payload={"approved": True})``, or in the admin."""


@job(name="library.index_file", timeout=60, max_attempts=3, backoff=Backoff(1, factor=2), description="{path}")
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


@job(name="library.sum_package", description="{name}")
def sum_package(name: str, edition: int, files: int) -> Totals:
    """Sum up the ``files`` files of a package. Raises Abandon if one has left no row, as when somebody cancels it."""
    newest = _check_newest(edition)
    totals = totals_of(newest.read().filter(package=name))
    if totals["files"] != files:
        raise Abandon(f"{totals['files']} of {files} files have been read or given up")
    columns = {what: totals[what] for what in ("files", "unreadable", "lines")}
    Package.objects.update_or_create(name=name, defaults={"edition_id": edition, **columns})
    return totals


@job(name="library.publish_report")
def publish_report(context: JobContext, edition: int, packages: list[Totals]) -> str:
    """Publish the sum of what packages were summed up to; return who approved it. Raises Abandon if it is refused."""
    totals = add_up(packages)
    context.step.using(atomic=True, undo=forget_totals)(store_totals, edition, totals)
    context.step.using(atomic=True, undo=take_off_page)(put_on_page, edition)
    verdict = context.wait_for(approval, edition, timeout=TIME_TO_APPROVE)
    check_approved(verdict)
    return context.step(note_approval, edition)


@job(name="library.store_totals")
def store_totals(edition: int, totals: Totals) -> None:
    """Store the totals of an edition. Raises Cancel if there is a newer one."""
    _check_newest(edition)
    Edition.objects.filter(pk=edition).update(totals=totals, problem="")


@store_totals.undo(max_attempts=10)
def forget_totals(context: JobContext, edition: int, totals: Totals) -> None:
    """Forget the totals of a report that was not approved."""
    Edition.objects.filter(pk=edition).update(totals=None)


@job(name="library.put_on_page")
def put_on_page(edition: int) -> None:
    """Let the page show the report of this edition, and say that it is not approved yet."""
    Edition.objects.filter(pk=edition).update(published_at=timezone.now())


@put_on_page.undo(max_attempts=10)
def take_off_page(context: JobContext, edition: int) -> None:
    """Let the page show again what it showed before: the last report that was approved."""
    Edition.objects.filter(pk=edition).update(published_at=None)


def check_approved(verdict: object) -> None:
    """Raise Abandon unless a verdict approves; a process that does not know its type may have sent anything."""
    given = verdict if isinstance(verdict, dict) else {}
    if given.get("approved") is not True:
        raise Abandon(f"refused: {given.get('reason') or 'no reason was given'}")


def note_approval(edition: int) -> str:
    """Note that an edition has been approved, and return by whom."""
    Edition.objects.filter(pk=edition).update(approved_at=timezone.now())
    return EventState.objects.get(name=approval.name_of(edition)).sent_by


@job(name="library.note_failure")
def note_failure(edition: int) -> str:
    """Note on an edition without a report what has been abandoned, and return it."""
    nodes = Job.objects.filter(parent_id=Edition.objects.get(pk=edition).flow, outcome="abandoned")
    failed = nodes.filter(name__in=(sum_package.name, publish_report.name)).order_by("pk")
    problem = "; ".join(f"{job.description or job.name}: {job.error}" for job in failed) or "the report was cancelled"
    Edition.objects.filter(pk=edition, approved_at=None).update(problem=problem)
    return problem


def _check_newest(edition: int) -> Edition:
    newest = Edition.objects.first()
    if newest is None or newest.pk != edition:
        raise Cancel("there is a newer edition")
    return newest


@job(name="library.refresh", cron=Cron("0 4 * * *", misfire="skip", overlap="skip"))
def refresh() -> int:
    """Register a new edition and return its id. Raises Cancel while another one is read, or waits for approval."""
    from example_project.indexer.indexing import is_being_read, start_edition  # which imports this module

    newest = Edition.objects.first()
    if newest is not None and is_being_read(newest):
        raise Cancel(f"{newest} is being read, or waits for approval")
    edition: int = start_edition(source_files()).pk
    return edition
