"""Registering an edition: one statement for all its jobs, in the transaction that makes the edition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from django.db import transaction

from django_pgjobs import BoundJob, register_many
from django_pgjobs.models import Job
from example_project.indexer.jobs import index_file, publish_report, sum_package
from example_project.indexer.models import Edition, Module, Package
from example_project.indexer.sources import package_of

NAMES = (index_file.name, sum_package.name, publish_report.name)


def start_edition(paths: Sequence[str]) -> Edition:
    """Register the jobs of a new edition of these files, all or nothing; cancel what is left of earlier ones.

    Rows of files that are no longer there are deleted.
    """
    sizes = Counter(map(package_of, paths))
    with transaction.atomic():
        Job.objects.filter(name__in=NAMES, finished_at=None).cancel(by="index_library", reason="a newer edition starts")
        Module.objects.exclude(path__in=paths).delete()
        Package.objects.exclude(name__in=sizes).delete()
        edition = Edition.objects.create(files=len(paths), packages=len(sizes))
        register_many(_calls(paths, sizes, edition.pk))
    return edition


def _calls(paths: Sequence[str], sizes: Counter[str], edition: int) -> Iterator[BoundJob]:
    """The files of each package, then the package: it is too early, now and then, and retried."""
    for package, members in groupby(sorted(paths, key=package_of), key=package_of):
        for path in members:
            yield index_file.bind(path=path, edition=edition)
        yield sum_package.bind(name=package, edition=edition, files=sizes[package])
    yield publish_report.bind(edition=edition)
