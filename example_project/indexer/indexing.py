"""An edition is one flow: which jobs it has, who waits for whom, how it is registered, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from django.db import transaction

from django_pgjobs import Batch, Flow
from django_pgjobs.exceptions import BatchClosed, InvalidJob
from django_pgjobs.models import Job
from example_project.indexer.jobs import index_file, note_failure, publish_report, sum_package
from example_project.indexer.models import Edition, Module, Package
from example_project.indexer.sources import package_of


def start_edition(paths: Sequence[str]) -> Edition:
    """Register the flow of a new edition of these files, all or nothing; cancel what is left of earlier ones.

    Rows of files that are no longer there are deleted.
    """
    packages = set(map(package_of, paths))
    with transaction.atomic():
        # The cancel of a flow's row cancels its nodes, and a worker ends the row behind the last of them.
        older = Job.objects.filter(pk__in=Edition.objects.values("flow"), finished_at=None)
        older.cancel(by="index_library", reason="a newer edition starts")
        Module.objects.exclude(path__in=paths).delete()
        Package.objects.exclude(name__in=packages).delete()
        edition = Edition.objects.create(files=len(paths), packages=len(packages))
        edition.flow = flow_of(edition.pk, paths).register().pk
        edition.save(update_fields=["flow"])
    return edition


def flow_of(edition: int, paths: Sequence[str]) -> Flow:
    """Return the flow of an edition: files, then their package, then the report, or a note that there is none.

    The report's job undoes what it has done itself, so the flow has nothing to undo.
    """
    flow = Flow(f"edition {edition}")
    sums = []
    for package, members in groupby(sorted(paths, key=package_of), key=package_of):
        files = [flow.add(index_file.bind(path=path, edition=edition)) for path in members]
        call = sum_package.bind(name=package, edition=edition, files=len(files))
        sums.append(flow.add(call, after=files, when="settled").result)
    report = flow.add(publish_report.bind(edition=edition, packages=sums))
    flow.add(note_failure.bind(edition=edition), after=report, when="failed")
    return flow


def report_of(edition: Edition) -> Job | None:
    """Return the job that publishes its report; None once that is pruned."""
    return Job.objects.filter(parent_id=edition.flow or 0, name=publish_report.name).first()


def waits_for_approval(edition: Edition) -> bool:
    """Whether its report is published, and somebody has to say whether that may stay so."""
    job = report_of(edition)
    return job is not None and job.outcome is None and job.why().code == "waiting_for_event"


def is_being_read(edition: Edition) -> bool:
    """Whether jobs of its flow have not ended; the report's has not while it waits for approval."""
    job = edition.job()
    return job is not None and job.outcome is None


def jobs_ended(edition: Edition) -> tuple[int, int]:
    """Return how many jobs of its flow have ended, and of how many: one row says it. Zeros once that row is pruned."""
    try:
        figures = Batch.of(edition.job()).figures
    except (InvalidJob, BatchClosed):
        return 0, 0
    return figures.total - figures.pending, figures.total
