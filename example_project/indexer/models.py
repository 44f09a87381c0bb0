"""What has been read: files, the names they define, packages; and the editions they were read for.

Everything here can be deleted at any time and comes back with the next ``manage.py index_library``.
"""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector, SearchVectorField
from django.db import models

from django_pgjobs.models import Job


def _search_field() -> models.GeneratedField:
    """Words of the name, and after them those of the summary."""
    vector = SearchVector("words", config="simple", weight="A") + SearchVector("summary", config="simple", weight="D")
    return models.GeneratedField(expression=vector, output_field=SearchVectorField(), db_persist=True)


class Edition(models.Model):
    """One reading of the whole library."""

    started_at = models.DateTimeField(auto_now_add=True)
    files = models.PositiveIntegerField(help_text="How many files are to be read.")
    packages = models.PositiveIntegerField(help_text="How many packages are to be summed up.")
    flow = models.BigIntegerField(null=True, help_text="The job that waits for all jobs of the edition.")
    totals = models.JSONField(null=True, help_text="Published when every package has been summed up.")
    published_at = models.DateTimeField(null=True, help_text="Since when the page shows the report.")
    approved_at = models.DateTimeField(null=True, help_text="Until then the report may be taken back.")
    problem = models.TextField(blank=True, help_text="Why there is no report.")

    objects: ClassVar[models.Manager[Edition]] = models.Manager()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"edition {self.pk}"

    @classmethod
    def on_page(cls) -> Edition | None:
        """The edition whose report the page shows."""
        return cls.objects.exclude(published_at=None).order_by("-published_at").first()

    def job(self) -> Job | None:
        """The row of its flow; None once that has been pruned."""
        return Job.objects.filter(pk=self.flow or 0).first()

    def read(self) -> models.QuerySet[Module]:
        """The files that have been read for it, or given up."""
        return Module.objects.filter(edition=self)

    def summed(self) -> models.QuerySet[Package]:
        """The packages that have been summed up for it."""
        return Package.objects.filter(edition=self)


class Module(models.Model):
    """A source file; ``problem`` says why it could not be read."""

    edition_id: int
    path = models.CharField(max_length=500, unique=True)
    name = models.CharField(max_length=500)
    package = models.CharField(max_length=200)
    edition = models.ForeignKey(Edition, on_delete=models.CASCADE, related_name="+")
    lines = models.PositiveIntegerField(default=0)
    imports = models.PositiveIntegerField(default=0)
    classes = models.PositiveIntegerField(default=0)
    functions = models.PositiveIntegerField(default=0, help_text="Methods included.")
    summary = models.CharField(max_length=200, blank=True)
    problem = models.TextField(blank=True)
    job = models.BigIntegerField(null=True, help_text="The job that gave the file up.")
    words = models.TextField(blank=True)
    search = _search_field()

    objects: ClassVar[models.Manager[Module]] = models.Manager()

    class Meta:
        ordering = ("path",)
        indexes = (GinIndex(name="library_module_search", fields=["search"]),)

    def __str__(self) -> str:
        return self.path


class Symbol(models.Model):
    """A class or function that a file defines."""

    class Kind(models.TextChoices):
        """What it is."""

        CLASS = "class"
        FUNCTION = "function"
        METHOD = "method"

    module = models.ForeignKey(Module, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=200)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    line = models.PositiveIntegerField()
    summary = models.CharField(max_length=200, blank=True)
    words = models.TextField()
    search = _search_field()

    objects: ClassVar[models.Manager[Symbol]] = models.Manager()

    class Meta:
        ordering = ("module", "line")
        indexes = (GinIndex(name="library_symbol_search", fields=["search"]),)

    def __str__(self) -> str:
        return self.name


class Package(models.Model):
    """The sums of a top-level package."""

    name = models.CharField(max_length=200, unique=True)
    edition = models.ForeignKey(Edition, on_delete=models.CASCADE, related_name="+")
    files = models.PositiveIntegerField()
    unreadable = models.PositiveIntegerField()
    lines = models.PositiveIntegerField()

    objects: ClassVar[models.Manager[Package]] = models.Manager()

    class Meta:
        ordering = ("-lines", "name")

    def __str__(self) -> str:
        return self.name
