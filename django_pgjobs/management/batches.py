"""``manage.py pgjobs tree`` and ``close-batch``: what waits for what, what undoes what, and batches left open."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.management.base import BaseCommand

from django_pgjobs.flows.batch import Batch
from django_pgjobs.flows.builtin import BATCH
from django_pgjobs.inspection import why
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job
from django_pgjobs.presentation.flow import Linked, Surroundings, Undone, listed, surroundings
from django_pgjobs.presentation.wording import label_of
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.steering.jobs import close_batches
from django_pgjobs.values.built_in import Act, refusal


def add_subcommands(subcommands: object) -> None:
    """Declare ``tree`` and ``close-batch``."""
    text = "Show the jobs around a job: its batch, its members, the jobs that it needs, and those that need it."
    filters.add_job(filters.declare(subcommands, "tree", databases.on_one(show_tree, steers=False), text))
    text = "Close a batch that is open for members; without unfinished members, it ends."
    filters.add_job(filters.declare(subcommands, "close-batch", databases.on_one(close_batch, steers=True), text))


def _job(command: BaseCommand, options: Options) -> Job:
    job = listed(filters.database_of(options)).filter(pk=options["id"]).first()
    return job if job is not None else output.fail(command, str(why.unknown(options["id"])))


def show_tree(command: BaseCommand, options: Options) -> None:
    """Print it; exit with 1 if there is no such job."""
    job = _job(command, options)
    around = surroundings(job)
    output.answer(command, options, _fields(job, around), _lines(job, around))


def _words(job: Job) -> str:
    text = f"{output.plain(one_line(job.name))} {output.ref(job.pk)} {label_of(job)}"
    return f"{text}: {output.plain(one_line(job.description))}" if job.description else text


def _lines(job: Job, around: Surroundings) -> Iterator[str]:
    if around.parent is not None:
        yield f"member of {_words(around.parent)}"
    for each in around.needs:
        yield f"needs ({each.rule}) {_words(each.job)}"
    if around.more_needs:
        yield f"needs {around.more_needs} more"
    yield _words(job)
    if around.gate is not None:
        gate = around.gate
        yield (
            f"  members: {gate.total}, succeeded {gate.succeeded}, abandoned {gate.abandoned}, "
            f"cancelled {gate.cancelled}, not ended {gate.unfinished}" + (", open for more" if gate.is_open else "")
        )
        yield from (f"  {_words(each)}" for each in around.failed)
        if around.more_failed:
            yield f"  and {around.more_failed} more: pgjobs list --batch {output.ref(job.pk, '')} --state abandoned"
    for each in around.dependents:
        yield f"  then ({each.rule}) {_words(each.job)}"
    if around.more_dependents:
        yield f"  and {around.more_dependents} more"


def _fields(job: Job, around: Surroundings) -> dict[str, object]:
    gate = around.gate
    return {
        **_of(job),
        "parent": None if around.parent is None else _of(around.parent),
        "members": None
        if gate is None
        else {
            "total": gate.total,
            "succeeded": gate.succeeded,
            "abandoned": gate.abandoned,
            "cancelled": gate.cancelled,
            "pending": gate.unfinished,
            "open": gate.is_open,
            "failed": [_of(each) for each in around.failed],
            "more_failed": around.more_failed,
        },
        "needs": [_linked(each) for each in around.needs],
        "more_needs": around.more_needs,
        "dependents": [_linked(each) for each in around.dependents],
        "more_dependents": around.more_dependents,
    }


def _of(job: Job) -> dict[str, object]:
    return {"id": job.pk, "name": job.name, "state": job.state}


def _linked(linked: Linked) -> dict[str, object]:
    return {"rule": linked.rule, **_of(linked.job)}


def fields_of_undoing(around: Surroundings) -> dict[str, object]:
    """Return what the job undoes, and what undoes it, as JSON fields."""
    undoing = [Undone("", around.undo)] if around.undo is not None else []
    return {
        "target": None if around.target is None else {**_of(around.target.job), "step": around.target.step},
        "compensations": [{**_of(each.job), "step": each.step} for each in undoing + around.compensations],
        "more_compensations": around.more_compensations,
    }


def undoing_facts(around: Surroundings) -> Iterator[tuple[str, str]]:
    """Yield the same as names and texts."""
    if around.target is not None:
        yield "undoes", _words_of(around.target)
    if around.undo is not None:
        yield "undone by", _words_of(Undone("", around.undo))
    more = [f"and {around.more_compensations} more"] if around.more_compensations else []
    yield "parts undone", "\n".join([*map(_words_of, around.compensations), *more])


def _words_of(undone: Undone) -> str:
    step = f", step {one_line(undone.step)}" if undone.step else ""
    return f"{one_line(undone.job.name)} {output.ref(undone.job.pk)} {label_of(undone.job)}{step}"


def close_batch(command: BaseCommand, options: Options) -> None:
    """Close it; exit with 1 if the job does not exist or is no batch."""
    job = _job(command, options)
    if job.name != BATCH:
        why = refusal(job.name, Act.CLOSE)
        output.fail(command, f"job {job.pk} is no batch{why and f': {why}'}")
    jobs = Job.objects.using(job._state.db).filter(pk=job.pk)
    done = close_batches(jobs, filters.database_of(options), by=filters.shell_user(), reason="")
    if "busy" in done.skipped:
        output.fail(command, f"batch {job.pk} is locked by another transaction: try again")
    figures = Batch.of(job).figures
    words = f"batch {job.pk} is closed, {figures.pending} of {figures.total} members have not ended"
    output.answer(command, options, {"id": job.pk, **figures._asdict()}, [words])
