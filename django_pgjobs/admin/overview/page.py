"""The page of the overview: its sections, who may see them, and how it stays live."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from django.contrib.messages import get_messages
from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.urls import URLPattern, path
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.overview.charts import SPANS, charts
from django_pgjobs.admin.overview.crons import crons
from django_pgjobs.admin.overview.databases import all_databases
from django_pgjobs.admin.overview.failures import failures
from django_pgjobs.admin.overview.queues import queues
from django_pgjobs.admin.overview.seen import Seen
from django_pgjobs.admin.overview.status import banner, tiles
from django_pgjobs.admin.overview.workers import workers
from django_pgjobs.admin.readonly import ReadOnlyAdmin
from django_pgjobs.diagnosis.latest import latest
from django_pgjobs.models import Job
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.store import counting
from django_pgjobs.store.database import on


class Section(NamedTuple):
    """A part of the page: its template's name, its heading, who may see it, and what it shows."""

    name: str
    heading: object
    permission: str
    show: Callable[[Seen], dict[str, object]]


SECTIONS = (
    Section("banner", "", "view_job", banner),
    Section("tiles", "", "view_job", tiles),
    Section("queues", _("Queues"), "view_job", queues),
    Section("failures", _("Failures within 24 hours"), "view_job", failures),
    Section("charts", _("Charts"), "view_job", charts),
    Section("workers", _("Workers"), "view_heartbeat", workers),
    Section("crons", _("Cron entries"), "view_cronentry", crons),
)


class OverviewAdmin(ReadOnlyAdmin):
    """One page instead of a list: the fleet at a glance. Of several databases one by one, or all in a table."""

    shows_all = True

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Tell whether the user may see jobs: the page shows how many there are."""
        return request.user.has_perm("pgjobs.view_job")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Do as for the page."""
        return self.has_view_permission(request)

    def get_urls(self) -> list[URLPattern]:
        """Return the page under the name of a list, to which the index links."""
        return [path("", self.admin_site.admin_view(self.door("overview_view")), name="pgjobs_overview_changelist")]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page; 304 to the script if its figures have not changed."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if self.aliases and not self.database:
            found = all_databases(request, self.admin_site.name, self.aliases)
            return self.own_page(request, "overview/databases.html", title=_("Overview"), **found)
        using = self.database or router.db_for_read(Job)
        span = request.GET.get("span", "")
        span = span if span in SPANS else "hour"
        tag = _tag(request, using, span)
        if tag and request.headers.get("If-None-Match") == tag:
            return HttpResponseNotModified()
        seen = Seen(request, self.admin_site.name, using, latest(on(using), using), span, self.database)
        page = self.own_page(
            request,
            "overview/page.html",
            title=_("Overview"),
            age=seconds(seen.latest.age_seconds),
            measured_by=seen.latest.measured_by,
            sections=[
                {
                    "id": f"pgjobs-{section.name}",
                    "heading": section.heading,
                    "template": f"admin/pgjobs/overview/{section.name}.html",
                    **section.show(seen),
                }
                for section in SECTIONS
                if seen.may(section.permission)
            ],
        )
        if tag:
            page.headers["ETag"] = tag
        return page


def _tag(request: HttpRequest, using: str, span: str) -> str:
    """Return what changes with the figures and the viewer; nothing if messages wait or no leader measures."""
    kept = counting.read_statistic(on(using))
    if kept.measured_at is None or (kept.age_seconds or 0.0) > LIVE_SECONDS or len(get_messages(request)):
        return ""
    # Ages grow between two measurements, so that the page is made again now and then.
    who = (str(request.user.pk), str(get_language()))
    parts = (kept.measured_at.isoformat(), using, span, *who, kept.now.strftime("%M"))
    return f'"{sha256("|".join(parts).encode()).hexdigest()[:32]}"'


LIVE_SECONDS = 30.0
