"""Data that all sections of the overview share: the figures, the viewer's permissions, and where the lists are."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.utils.functional import cached_property

from django_pgjobs.admin.display import Pages
from django_pgjobs.diagnosis.latest import Latest
from django_pgjobs.store.database import Database, on


@dataclass(frozen=True)
class Seen:
    """The figures and the request; ``span``: the key of the charts' time span.

    ``database``: the alias, if several databases are served.
    """

    request: HttpRequest
    site: str
    using: str
    latest: Latest
    span: str
    database: str = ""

    @cached_property
    def db(self) -> Database:
        """The connection that the sections read."""
        return on(self.using)

    @property
    def pages(self) -> Pages:
        """The addresses of jobs and lists of jobs."""
        return Pages(self.site, self.database)

    def may(self, permission: str) -> bool:
        """Tell whether the viewer has this permission of the app."""
        return self.request.user.has_perm(f"pgjobs.{permission}")

    @property
    def may_resume(self) -> bool:
        """True if the viewer may end pauses, and see the list of them where that is done."""
        return self.may("pause_queue") and self.may("view_queuestate")
