"""The admin pages of workers: those that live, and those that stopped lately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.actions import ReasonForm
from django_pgjobs.admin.display import badge, below, format_html, person, short, when
from django_pgjobs.admin.readonly import ReadOnlyAdmin, column, may
from django_pgjobs.admin.trail import VERBS
from django_pgjobs.inspection.liveness import LIVE, STATUS_LABELS
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Heartbeat
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering import workers
from django_pgjobs.steering.trail import ADMIN, recorded_as

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import WorkerRow


class HeartbeatAdmin(ReadOnlyAdmin):
    """Workers; those without recent heartbeats, by the database's clock, appear as silent or lost."""

    list_display = (
        "shown_name", "shown_state", "shown_beat", "shown_work", "shown_queues", "capacity", "shown_release",
    )  # fmt: skip
    ordering = ("-last_beat_at",)
    actions = ("quiet", "resume", "drain", "recycle")
    has_steer_permission = may("steer_worker")
    fieldsets = (
        (None, {"fields": ("shown_name", "shown_state", "id", "shown_version", "shown_release")}),
        (_("Work"), {"fields": ("shown_queues", "capacity", "shown_places", "shown_work")}),
        (_("Requests"), {"fields": ("shown_control", "shown_taken")}),
        (_("Executors"), {"fields": ("shown_deaths", "shown_suspects")}),
        (_("Timing"), {"fields": ("shown_start", "shown_beat")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Heartbeat]:
        """Add status and leadership, by the database's clock."""
        workers: Any = super().get_queryset(request)
        found: QuerySet[Any] = workers.with_status()
        return found

    shown_release = column(_("release"), lambda beat: short(beat.release, 100) or "–")
    shown_version = column(_("version"), lambda beat: short(beat.version, 100))
    shown_beat = column(_("last beat"), lambda beat: when(beat.last_beat_at))
    shown_start = column(_("started"), lambda beat: when(beat.started_at))

    @admin.display(description=_("name"))
    def shown_name(self, beat: Heartbeat) -> str:
        """The name, and below it host and process."""
        where = _("%(host)s, process %(pid)d") % {"host": beat.host[:100], "pid": beat.pid}
        return below(short(beat.name, 200), str(where))

    @admin.display(description=_("jobs"))
    def shown_work(self, beat: Heartbeat) -> str:
        """Return how many jobs it runs, and how many it has finished."""
        running = _("%(count)s running") % {"count": grouped(beat.running)}
        return below(str(running), str(_("%(count)s finished") % {"count": grouped(beat.finished)}))

    @admin.display(description=_("state"))
    def shown_state(self, beat: WorkerRow) -> str:
        """The state that it reports while its heartbeats arrive, else *silent* or *lost*; below it *leader*."""
        words = [str(_("leader"))] if beat.leads else []
        if beat.is_asked and beat.status in LIVE:
            words.append(str(_("asked: %(what)s") % {"what": VERBS.get(beat.control, beat.control[:100])}))
        return below(badge(beat.status, STATUS_LABELS.get(beat.status, beat.status)), ", ".join(words))

    @admin.display(description=_("queues"))
    def shown_queues(self, beat: Heartbeat) -> str:
        """The queues it serves."""
        served, without = (visible(", ".join(names or ())) for names in beat.served)
        served = served or str(_("all"))
        return short(f"{served} − {without}" if without else served, 1000)

    @admin.display(description=_("capacity"))
    def capacity(self, beat: Heartbeat) -> str:
        """Executors, and the threads and coroutines in each."""
        text = _("%(processes)d × (%(threads)d threads + %(slots)d async)")
        return str(text % {"processes": beat.processes, "threads": beat.threads, "slots": beat.async_slots})

    @admin.display(description=_("places of queues"))
    def shown_places(self, beat: Heartbeat) -> str:
        """The number of jobs of a queue that it runs at once."""
        places = [f"{name}: {grouped(most)}" for name, most in beat.slots_of_queues.items()]
        return short(visible(", ".join(places)), 1000) if places else "–"

    @admin.display(description=_("last request"))
    def shown_control(self, beat: Heartbeat) -> str:
        """The last request of an operator: for what, by whom, when and why."""
        if not beat.control or beat.controlled_at is None:
            return "–"
        head = format_html("{} · {}", str(VERBS.get(beat.control, beat.control[:100])), when(beat.controlled_at))
        return below(head, format_html("{} {}", person(beat.control_by), short(beat.control_reason, 500)))

    @admin.display(description=_("taken up"))
    def shown_taken(self, beat: WorkerRow) -> str:
        """The time at which it took that up, or that it has not."""
        if not beat.control_number:
            return "–"
        if not beat.is_asked:
            return str(when(beat.taken_at)) if beat.taken_at else "–"
        if beat.status == "stopped":
            return str(_("no, it has left"))
        if beat.status == "draining" and beat.control != "drain":
            return str(_("no, it drains"))
        return str(_("at its next heartbeat") if beat.status in LIVE else _("no, it has not been heard from since"))

    @admin.action(description=_("Quiet: claim nothing more"), permissions=["steer"])
    def quiet(self, request: HttpRequest, queryset: object) -> None:
        """Ask the chosen workers."""
        self._ask(request, queryset, "quiet")

    @admin.action(description=_("Resume: claim again"), permissions=["steer"])
    def resume(self, request: HttpRequest, queryset: object) -> None:
        """Ask the chosen workers."""
        self._ask(request, queryset, "resume")

    @admin.action(description=_("Drain and exit"), permissions=["steer"])
    def drain(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        """Ask the chosen workers, after a question."""
        return self._confirmed(
            request,
            queryset,
            "drain",
            _("They claim nothing more, finish what they run, and exit. Nothing recalls that."),
        )

    @admin.action(description=_("Recycle executors"), permissions=["steer"])
    def recycle(self, request: HttpRequest, queryset: object) -> HttpResponse | None:
        """Ask the chosen workers, after a question."""
        return self._confirmed(
            request, queryset, "recycle", _("They replace all their executors; jobs that run finish in the old ones.")
        )

    def _confirmed(self, request: HttpRequest, queryset: Any, verb: str, question: object) -> HttpResponse | None:
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            self._ask(request, queryset, verb, form.cleaned_data["reason"])
            return None
        beats = list(queryset)
        return self.own_page(
            request,
            "heartbeat/confirm_action.html",
            title=getattr(self, verb).short_description,
            action={"name": verb, "question": question, "destructive": verb == "drain"},
            form=form,
            asked=[
                (short(beat.name, 200), _("%(count)s running") % {"count": grouped(beat.running)}) for beat in beats
            ],
            chosen=[self.pages.shown(beat.pk) for beat in beats],
            everything=False,
            checkbox=ACTION_CHECKBOX_NAME,
            back=request.get_full_path(),
        )

    def _ask(self, request: HttpRequest, queryset: Any, verb: str, reason: str = "") -> None:
        """Ask workers for something, in the name of the user, and say which are gone."""
        chosen = list(queryset)
        with recorded_as(ADMIN):
            found = workers.ask(self.written, [beat.pk for beat in chosen], verb, by=request.user, reason=reason)
        asked = {each.id for each in found if each.was}
        for beat in chosen:
            if beat.pk in asked:
                self.log_change(request, beat, gettext("Asked: %(what)s.") % {"what": verb})
        names = ", ".join(visible(each.name[:200]) for each in found if each.was)
        if names:
            text = gettext("Asked: %(names)s. Each takes it up at its next heartbeat.") % {"names": names}
            self.message_user(request, text, messages.SUCCESS)
        gone = ", ".join(
            f"{visible(each.name[:200])} ({STATUS_LABELS.get(each.status, each.status)})"
            for each in found
            if not each.was
        )
        if gone:
            text = gettext("Not asked, as they drain or are gone: %(names)s.") % {"names": gone}
            self.message_user(request, text, messages.WARNING)

    @admin.display(description=_("deaths"))
    def shown_deaths(self, beat: Heartbeat) -> str:
        """Return how many executors have died by themselves, and how the last one did, with the jobs that it ran."""
        if not beat.deaths or beat.died_at is None:
            return "–"
        return below(grouped(beat.deaths), format_html("{} {}", when(beat.died_at), beat.death[:1000]))

    @admin.display(description=_("suspects"))
    def shown_suspects(self, beat: Heartbeat) -> str:
        """Return the jobs that run apart since an executor died with them, and those that wait for that."""
        if not isinstance(beat.suspects, dict) or beat.suspects_since is None:
            return "–"
        running, pending = (_ids(beat.suspects.get(name)) for name in ("running", "pending"))
        words = str(_("run apart since {}, running: {}; pending: {}"))
        return format_html(words, when(beat.suspects_since), running, pending)


def _ids(stored: object) -> str:
    ids = [f"#{each}" for each in stored if isinstance(each, int)] if isinstance(stored, list) else []
    return ", ".join(ids) or "–"
