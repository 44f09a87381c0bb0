"""The pages on which people make and change schedules: a form, a preview, and the row. They work without script."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.contrib.admin.utils import unquote as unquoted
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.cron_forms import ScheduleForm, jobs_to_schedule
from django_pgjobs.admin.display import when
from django_pgjobs.admin.readonly import ReadOnlyAdmin
from django_pgjobs.exceptions import PgJobsError
from django_pgjobs.models import CronEntry
from django_pgjobs.presentation import sight
from django_pgjobs.presentation.schedules import in_words
from django_pgjobs.schedules import BoundSchedule, Reading, ScheduleOptions, read_back
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering.trail import ADMIN, recorded_as

PREVIEWED = 10


def add_schedule(admin: ReadOnlyAdmin, request: HttpRequest) -> HttpResponse:
    """Make a schedule: choose the job, fill in the form, preview or save."""
    if not admin.has_add_permission(request):
        raise PermissionDenied
    jobs = {definition.name: definition for definition in jobs_to_schedule()}
    definition = jobs.get(request.GET.get("job", "")) or (next(iter(jobs.values())) if len(jobs) == 1 else None)
    if definition is None:
        return _page(admin, request, _("Add a schedule: for which job?"), {"jobs": _to_choose(admin, jobs)})
    if not _may_write(request, definition.name):
        words = _("The arguments of %(job)s are sensitive: to write them you need the permission %(permission)s.")
        named = {"job": visible(definition.name), "permission": sight.PERMISSION}
        admin.message_user(request, words % named, messages.ERROR)
        return _page(admin, request, _("Add a schedule: for which job?"), {"jobs": _to_choose(admin, jobs)})
    timing = ScheduleOptions(name=None, tz=settings.TIME_ZONE)
    blank = Reading(definition, _home(admin), None, timing, [], {})
    form = ScheduleForm(request.POST or None, reading=blank, new=True, by=request.user, reveal=True)
    form.initial = {"tz": settings.TIME_ZONE}
    title = _("Add a schedule for %(job)s") % {"job": visible(definition.name)}
    return _write(admin, request, form, title)


def change_schedule(admin: ReadOnlyAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
    """Change a schedule made at run time."""
    if not admin.has_view_permission(request) or not request.user.has_perm("pgjobs.change_cronentry"):
        raise PermissionDenied
    name = unquoted(object_id)
    entry = CronEntry.objects.using(admin.database or None).filter(pk=name).first() if admin.is_id(name) else None
    if entry is None:
        return admin.to_list(request, _("There is no such cron entry."))
    try:
        reading = read_back(entry)
        reading = reading._replace(options={**reading.options, **_home(admin)})
    except PgJobsError as error:
        admin.message_user(request, visible(error), messages.ERROR)
        return HttpResponseRedirect(_page_of(admin, entry))
    reveal = _may_write(request, reading.definition.name)
    form = ScheduleForm(request.POST or None, reading=reading, new=False, by=request.user, reveal=reveal)
    return _write(admin, request, form, _("Change schedule %(name)s") % {"name": visible(entry.pk)}, entry)


def _to_choose(admin: ReadOnlyAdmin, jobs: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, admin.pages.page("cronentry_add", job=name)) for name in jobs]


def _home(admin: ReadOnlyAdmin) -> dict[str, object]:
    """Return the option that writes a row to the page's database, where several are served."""
    return {"database": admin.database} if admin.database else {}


def _may_write(request: HttpRequest, job_name: str) -> bool:
    return sight.may_see(sight.Fact.WRITTEN, job_name, reveal=request.user.has_perm(sight.PERMISSION))


def _coming(bound: BoundSchedule[Any], entry: CronEntry | None) -> int:
    """Return how many fires to preview: those it has made count on unless its schedule changes."""
    new = bound.timing
    if entry is None or new.max_fires is None:
        return PREVIEWED
    stays = (new.expression, new.zone, new.starts_at, new.ends_at, new.max_fires) == (
        entry.declared_expression, entry.declared_zone, entry.starts_at, entry.ends_at, entry.max_fires,
    )  # fmt: skip
    return min(PREVIEWED, max(0, new.max_fires - entry.fires_made)) if stays else PREVIEWED


def _write(
    admin: ReadOnlyAdmin, request: HttpRequest, form: ScheduleForm, title: object, entry: CronEntry | None = None
) -> HttpResponse:
    context: dict[str, object] = {"form": form, "original": admin.named(entry)}
    if request.method == "POST" and form.is_valid() and form.bound is not None:
        if "_preview" in request.POST:
            timing = form.bound.timing
            context["words"] = in_words(timing.expression, timing.zone)
            context["fires"] = [when(fire) for fire in form.bound.next_fires(_coming(form.bound, entry))]
            context["previewed"] = True
            return _page(admin, request, title, context)
        try:
            with recorded_as(ADMIN):
                written = form.reading.write()
        except (PgJobsError, TypeError) as error:
            form.add_error(None, visible(error))
        else:
            if entry is None:
                admin.log_addition(request, written, str(_("Added.")))
            else:
                admin.log_change(request, written, str(_("Changed.")))
            words = {"created": _("Schedule made."), "changed": _("Schedule changed."), "unchanged": _("No change.")}
            admin.message_user(request, words[written.written], messages.SUCCESS)
            if not admin.has_view_permission(request):
                return HttpResponseRedirect(reverse("admin:index", current_app=admin.admin_site.name))
            return HttpResponseRedirect(_page_of(admin, written))
    return _page(admin, request, title, context)


def _page(admin: ReadOnlyAdmin, request: HttpRequest, title: object, context: dict[str, Any]) -> HttpResponse:
    return admin.own_page(request, "cronentry/schedule_form.html", title=title, **context)


def _page_of(admin: ReadOnlyAdmin, entry: CronEntry) -> str:
    return admin.pages.page("cronentry_change", quote(entry.pk))
