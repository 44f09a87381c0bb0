"""The list page of jobs: its filters, and how it reads one page in at most four queries.

The filters only offer choices and never scan a table for them. ``JobSearch`` interprets the chosen values, so
that one place decides on conditions, order and bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.contrib import messages
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.paginator import InvalidPage, Paginator
from django.db import router
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.databases import VAR, DatabaseList
from django_pgjobs.diagnosis.latest import leaders, total
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Job
from django_pgjobs.presentation import filters, job_list, sight
from django_pgjobs.presentation.filters import STATES, Choices, Filter
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.presentation.wording import STATE_LABELS
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import JobState
from django_pgjobs.store import claiming
from django_pgjobs.store.database import on

if TYPE_CHECKING:
    AnyPaginator = Paginator[object]
else:
    AnyPaginator = Paginator

MOST_PROBLEMS = 3


class CappedPaginator(AnyPaginator):
    """A paginator that stops counting at ``job_list.MOST`` rows."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most ``job_list.MOST``."""
        if isinstance(self.object_list, QuerySet):
            return self.object_list.order_by()[: job_list.MOST].count()
        return min(len(self.object_list), job_list.MOST)


class OfferedFilter(SimpleListFilter):
    """A filter of the table ``filters``: it offers choices, and also shows a chosen value that is not among them."""

    described: ClassVar[Filter]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        """Leave the condition to ``JobSearch``."""

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        """Return choices without counts, and never from the table of jobs."""
        return self.described.offered(self.value() or "")

    def has_output(self) -> bool:
        """Show the filter only if it has choices."""
        return bool(self.lookup_choices)


class QueueFilter(OfferedFilter):
    """Queues that have unfinished jobs, or that a job definition or a setting names."""

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        """Read the pairs of (queue, priority), one index probe each; the list needs them too."""
        page: Any = model_admin
        self.pairs = claiming.list_pairs(on(page.database or router.db_for_read(Job)))
        return sorted({(queue, visible(queue)) for queue, _ in self.pairs} | {*super().lookups(request, model_admin)})


class ReachFilter(OfferedFilter):
    """Number of jobs that a bounded search examines; hidden for other searches."""

    title = _("search depth")
    parameter_name = "reach"

    def lookups(self, request: HttpRequest, model_admin: object) -> Choices:
        """Return the one choice besides the default."""
        return [("far", self._words(far=True))]

    def has_output(self) -> bool:
        """Show the filter only if it makes a difference."""
        return self._job_search().bounded

    def choices(self, changelist: Any) -> Any:
        """Label the default with what it does."""
        for number, choice in enumerate(super().choices(changelist)):
            yield choice if number else {**choice, "display": self._words(far=False)}

    def _job_search(self) -> JobSearch:
        return JobSearch.of(self.request.GET, self.request.GET.get("q", ""))

    def _words(self, *, far: bool) -> str:
        job_search = self._job_search()
        number = grouped(job_search.reaches(far=far))
        return str(_("the first %(count)s jobs") % {"count": number})


def list_filters() -> list[type[SimpleListFilter]]:
    """Return the filters beside the list, in the order of the table."""
    shown = [(each, QueueFilter if each.name == "queue" else OfferedFilter) for each in filters.FILTERS if each.title]
    facts = [(base, {"title": each.title, "parameter_name": each.name, "described": each}) for each, base in shown]
    return [*(type(base.__name__, (base,), of) for base, of in facts), ReachFilter]


class Tab(NamedTuple):
    """A tab above the list: its label, where it leads, its count if known, and whether it is chosen."""

    label: str
    url: str
    shown: str
    chosen: bool
    state: str


_COUNTED = {
    "ready": "ready", "scheduled": "scheduled", "retrying": "retrying", "running": "running", "blocked": "held.blocked",
    "parked": "held.parked", "limited": "held.limited", "paused": "held.paused",
    "moving": "held.moving",
}  # fmt: skip


class JobChangeList(DatabaseList):
    """One page, read in four queries: (queue, priority) pairs, the bound if needed, at most 10,001 ids, the rows."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Model]:
        """Return all matching jobs, unordered; *select all* acts on them."""
        self.reveal = request.user.has_perm(sight.PERMISSION)
        jobs = super().get_queryset(request, exclude_parameters)
        if self.job_search.problem:
            raise IncorrectLookupParameters
        if self.job_search.complaint:
            self.unbounded = jobs.none()
            return self.unbounded
        self.unbounded = jobs.filter(self.job_search.listed())
        # A page reads the ranges one by one, which is quick; an action needs them all in one condition.
        within = reduce(or_, (index_range.where for index_range in self.cut), Q())
        return self.unbounded.filter(within)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[Any]:
        """Ignore the query string: only the orders of ``job_list`` are quick."""
        return ["-pk"]

    def get_ordering_field_columns(self) -> dict[int, Any]:
        """Mark no column as the sorted one."""
        return {}

    @cached_property
    def job_search(self) -> JobSearch:
        """The filters and the search."""
        asked = JobSearch.of(self.params, self.query, reveal=self.reveal)
        return job_list.settled(asked, self.root_queryset.db)

    @cached_property
    def ranges(self) -> list[job_list.IndexRange]:
        """The index ranges to read."""
        pairs = next((spec.pairs for spec in self.filter_specs if isinstance(spec, QueueFilter)), [])
        return job_list.ranges_of(self.job_search, pairs)

    @cached_property
    def cut(self) -> list[job_list.IndexRange]:
        """The index ranges that bound the search; empty when the search covers everything."""
        return job_list.bounded(self.job_search, self.root_queryset, self.ranges) if self.job_search.bounded else []

    def get_results(self, request: HttpRequest) -> None:
        """Read one page: the ids along the index, then their rows."""
        most = job_list.most_of(self.job_search)
        if self.job_search.complaint:
            messages.error(request, self.job_search.complaint)
            ids: list[int] = []
        else:
            ids = job_list.find_ids(self.unbounded, self.cut or self.ranges, most + 1)
        self.more = len(ids) > most
        admin = self.model_admin
        paginator = admin.get_paginator(request, ids[:most], self.list_per_page)
        self.result_count = paginator.count
        self.show_full_result_count, self.full_result_count, self.show_admin_actions = False, None, True
        self.can_show_all = self.result_count <= self.list_max_show_all
        self.multi_page = self.result_count > self.list_per_page
        self.paginator = paginator
        self.result_list = admin.read_rows(self.root_queryset, self._page_of(ids))
        for job in self.result_list:
            job.in_columns = self.job_search.state in admin.list_display_of

    def _page_of(self, ids: Sequence[int]) -> Sequence[int]:
        if not self.multi_page or (self.show_all and self.can_show_all):
            return ids
        try:
            page: Sequence[int] = self.paginator.page(self.page_num).object_list
        except InvalidPage:
            raise IncorrectLookupParameters from None
        return page

    @cached_property
    def tabs(self) -> list[Tab]:
        """A tab for each state, with the leader's counts where they count what the tab lists."""
        chosen = self.params.get("state", "")
        counts = self._counts()
        words = {"": _("all"), **{state: STATE_LABELS[state] for state in STATES}}
        return [self._tab(state, capfirst(str(word)), counts.get(state, ""), chosen) for state, word in words.items()]

    def _tab(self, state: str, label: str, shown: str, chosen: str) -> Tab:
        url = self.get_query_string({"state": state} if state else {}, ["p", "state"])
        return Tab(label, url, shown, chosen == state, state)

    @property
    def problems(self) -> list[str]:
        """Problems that keep jobs from running, as the leader found them last."""
        found = self.latest if self.tabs else None
        return (
            [visible(each.text[:500]) for each in found.problems if not each.is_note][:MOST_PROBLEMS] if found else []
        )

    @property
    def retrying_url(self) -> str:
        """URL of the list of jobs that failed with this error and are tried again; empty if the state was chosen."""
        if not self.job_search.error or self.params.get("state"):
            return ""
        return self.get_query_string({"state": "retrying"}, ["p"])

    @property
    def is_live(self) -> bool:
        """True if the page keeps its rows current."""
        return self.job_search.state == JobState.RUNNING

    def _counts(self) -> dict[str, str]:
        """Return the leader's counts by state, of the chosen queue if there is one; none beside other filters."""
        found = leaders(on(self.root_queryset.db))
        self.latest = found
        others = {*self.params} - {"state", "queue", "p", VAR}
        if found is None or others or self.query:
            return {}
        queue = self.params.get("queue")
        queues = [each for each in found.figures["queues"] if queue in (None, "", each["queue"])]
        return {state: total(queues, path)[1] for state, path in _COUNTED.items()}

    @property
    def count_text(self) -> str:
        """The number of results in words: *more than 10,000* if counting stopped there."""
        number = grouped(self.result_count)
        return _("more than %(count)s") % {"count": number} if self.more else number

    @property
    def bound_text(self) -> str:
        """A note that the search covered only a part of the jobs; empty if it covered all."""
        if self.job_search.complaint or not self.cut:
            return ""
        return _("Only the first %(count)s jobs of this list were searched.") % {
            "count": grouped(self.job_search.reach)
        }

    @property
    def further(self) -> tuple[str, str] | None:
        """URL and label of a search that looks further; None if this one already looked as far as possible."""
        most = self.job_search.reaches(far=True)
        if not self.cut or self.job_search.reach >= most:
            return None
        words = _("Search the first %(count)s") % {"count": grouped(most)}
        return self.get_query_string({"reach": "far"}, ["p"]), words
