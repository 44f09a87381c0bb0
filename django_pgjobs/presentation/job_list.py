"""What a list of jobs was asked for, and how to read it along an index.

``ORDER BY id DESC LIMIT 50`` is the trap of such lists: PostgreSQL walks the primary key backwards and, where
the wanted rows are rare and old, reads the whole table (a second at a million jobs). So every state has an order
that its own index gives:

* all jobs: newest id first (primary key)
* succeeded, cancelled, abandoned: latest end first (``pgjobs_job_ended``)
* ready, scheduled, retrying: earliest ``run_at`` first, one index range for each (queue, priority) that has jobs
  (``pgjobs_job_claim_order``); where these are very many, ``store.first_due`` finds the first ids of all of them
* waiting, parked, limited: by name (``pgjobs_job_held``), and by nothing else: sorting within a name reads them all
* running: newest id first, by the ids in the ledger of claims
* older than an age, in whatever state: oldest id first, as the newest ones are not
* tagged, in whatever state: newest id first, by the ids that the index of tags knows (``pgjobs_job_tags``)

A name, a queue or a text is in none of those indexes (but for a queue's unfinished and a name's held jobs). They
are looked for among the first ``NEAR`` rows of the order (a text: ``NEAR_TEXT``), or ``FAR`` when the operator
asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from django.db.models import BooleanField, F, Func, Q, QuerySet, Subquery, Value
from django.db.models.functions import Now

from django_pgjobs.fields import BigIntArrayField
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.presentation.wording import exactly
from django_pgjobs.states import LABELS, Hold, JobState, Outcome
from django_pgjobs.store import statements as store

MOST = 10_000
"""A list says "more than 10,000" instead of counting further."""

NEAR = 100_000
"""Jobs among which a name or a queue is looked for."""

NEAR_TEXT = 100_000
"""Jobs in which a text is looked for."""

NEAR_HELD = 5_000
"""Held jobs in which a queue or a text is looked for; each of their ids travels with the query."""

FAR = 1_000_000
"""The same as ``NEAR``, for who has the time (a text: a second or two)."""

FAR_HELD = 20_000
"""The same as ``NEAR_HELD``."""

MOST_RANGES = 40
"""PostgreSQL merges so many (queue, priority) pairs; with more of them the planning would take longer than the list."""

DEEPER = 4
"""How many times as far a list looks when other conditions have left it too few jobs."""

BIGGEST_ID = 2**63 - 1
TEXT_LIMIT = 200
STATES: tuple[str, ...] = (
    JobState.READY.value, *LABELS, *(state.value for state in JobState if state != JobState.READY),
)  # fmt: skip
"""What one can choose; *ready* here means due."""

_ID = re.compile(r"#?0*([0-9]{1,30})")
_DUE = frozenset({JobState.READY.value, *LABELS})
_ENDED = frozenset(outcome.value for outcome in Outcome)
_HELD = frozenset(hold.value for hold in Hold)
_LATER = Q(state=JobState.READY.value, run_at__gt=Now())

DUE_ORDER = ("run_at", "pk")

Pairs = Sequence[tuple[str, int]]


class IndexRange(NamedTuple):
    """A part of a list that one index range answers: its condition, its order, and the lookup that can bound it.

    ``pairs`` are those of a list of due jobs (``later``: of those to run later) that has too many for a range each.
    """

    where: Q
    order: tuple[str, ...]
    bound: str = "run_at"
    pairs: Pairs = ()
    later: bool = False


@dataclass(frozen=True, slots=True)
class JobSearch:
    """A list's filters and search, as words; ``problem`` is true when they are no filter of ours."""

    state: str = ""
    queue: str = ""
    name: str = ""
    text: str = ""
    job_id: int | None = None
    reach: int = NEAR
    description: str = ""
    key: str = ""
    tag: str = ""
    since: float | None = None
    """Seconds: younger ones, and with ``older`` older ones; of an ended state since the end, else since registering."""
    older: float | None = None
    problem: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, params: Any, search: str) -> JobSearch:
        """Read them from a query dict (``state``, ``queue``, ``name``, ``reach``) and a search term."""
        state, queue, name, tag = (params.get(key, "") for key in ("state", "queue", "name", "tag"))
        text, job_id = parse_search(search)
        problem = "\0" in queue + name + tag or bool(state and state not in STATES)
        reach = reach_of(state, text, far=params.get("reach") == "far")
        return cls("" if problem else state, queue, name, text, job_id, reach, tag=tag, problem=problem)

    @property
    def words(self) -> str:
        """The filters as an operator would type them: *state ready, queue mail, "order 17"*; empty for none."""
        named = {name: getattr(self, name) for name in ("state", "queue", "name", "tag", "description", "key")}
        words = [f"{name} {value}" for name, value in named.items() if value]
        words += [f"since {exactly(self.since)} ago"] if self.since is not None else []
        words += [f"older than {exactly(self.older)}"] if self.older is not None else []
        words += [f"id {self.job_id}"] if self.job_id is not None else []
        return ", ".join([*words, f'"{self.text}"'] if self.text else words)

    @property
    def bounded(self) -> bool:
        """Whether the search covers only a part of the jobs."""
        if self.job_id is not None or self.state == JobState.RUNNING or self.tag:
            return False
        rest = bool(self.text or self.description or self.key)
        aged = self.state not in _ENDED and (self.since is not None or self.older is not None)
        if self.state in _HELD:
            return bool(self.queue) or rest or aged
        by_queue = bool(self.queue) and self.state not in _DUE
        return by_queue or rest or aged or bool(self.name) or self.state == "retrying"

    def where(self) -> Q:
        """The condition of the filters, without search and bound."""
        found = state_condition(self.state)
        for column in ("queue", "name"):
            if value := getattr(self, column):
                found &= Q(**{column: value})
        found &= Q(key=self.key) if self.key else Q()
        if self.tag:
            # An array, which PostgreSQL makes once: it may run a subquery of IN anew for each job that it looks at.
            tagged = Job.objects.filter(tags__contains=[self.tag]).values("pk")[:FAR]
            found &= _is_one_of(Subquery(tagged, template="ARRAY(%(subquery)s)"))
        found &= Q(description__icontains=self.description) if self.description else Q()
        return found & self.age()

    def age(self) -> Q:
        """The condition of ``since`` and ``older``."""
        column = "finished_at" if self.state in _ENDED else "created_at"
        found = Q()
        if self.since is not None:
            found &= Q(**{f"{column}__gte": Now() - timedelta(seconds=self.since)})
        if self.older is not None:
            found &= Q(**{f"{column}__lte": Now() - timedelta(seconds=self.older)})
        return found

    def ranges(self, pairs: Pairs) -> list[IndexRange]:
        """The index ranges that hold what was asked for; ``pairs`` are all (queue, priority) with unfinished jobs."""
        if self.job_id is not None or self.state == JobState.RUNNING or self.tag:
            return [IndexRange(Q(), ("-pk",))]
        if self.state in _DUE:
            return self._due_ranges([pair for pair in pairs if self.queue in ("", pair[0])])
        if self.state in _ENDED:
            return [IndexRange(Q(), ("-finished_at", "-pk"), "finished_at__gte")]
        if self.state in _HELD:
            return [IndexRange(Q(), ("name",))]
        if self.older is not None and self.since is None:
            return [IndexRange(Q(), ("pk",), "pk__lte")]
        return [IndexRange(Q(), ("-pk",), "pk__gte")]

    def _due_ranges(self, pairs: Pairs) -> list[IndexRange]:
        if not 0 < len(pairs) <= MOST_RANGES:
            in_queue = Q(queue=self.queue) if self.queue else Q()
            return [IndexRange(in_queue, DUE_ORDER, pairs=pairs, later=self.state in LABELS)]
        return [IndexRange(Q(queue=queue, priority=priority), DUE_ORDER) for queue, priority in pairs]


def parse_search(search: str) -> tuple[str, int | None]:
    """Return (text, id) of a search term: digits, or # and digits, are an id; quoted they are text."""
    term = search.strip()[:TEXT_LIMIT]
    if match := _ID.fullmatch(term):
        return "", int(match[1])
    return term.strip('"'), None


def reach_of(state: str, text: str, *, far: bool) -> int:
    """Return how many jobs a bounded search looks at."""
    if state in _HELD:
        return FAR_HELD if far else NEAR_HELD
    return FAR if far else NEAR_TEXT if text else NEAR


def state_condition(state: str) -> Q:
    """What a state or label means; an empty one is no condition."""
    if state == JobState.READY:
        return Q(state=JobState.READY.value, run_at__lte=Now())
    if state in LABELS:
        return _LATER & (Q(attempt__gt=0) if state == "retrying" else Q(attempt=0))
    if state in _HELD:
        # Not Q(state=…): beside "hold = 'parked'" its "hold IS NOT NULL" makes PostgreSQL expect a tenth of the rows,
        # and read them all to sort them.
        return Q(hold=state, claim_id__isnull=True, finished_at__isnull=True)
    return Q(state=state) if state else Q()


def search_condition(text: str, job_id: int | None) -> Q:
    """What a search means: exactly this id, or a part of name or description."""
    if job_id is not None:
        return Q(pk=job_id) if job_id <= BIGGEST_ID else Q(pk__in=[])
    return Q(name__icontains=text) | Q(description__icontains=text) if text else Q()


def bounded(search: JobSearch, jobs: QuerySet[Job], ranges: Sequence[IndexRange]) -> list[IndexRange]:
    """Return the ranges cut to the first ``search.reach`` jobs together; empty when there are no more anyway."""
    if search.state in _HELD:
        # Thousands may share a name, so no name is an edge: the ids themselves are.
        held = jobs.filter(state_condition(search.state)).order_by(*ranges[0].order).values_list("pk", flat=True)
        return _among(search, list(held[: search.reach + 1]), ranges[0])
    if ranges[0].pairs:
        return _among(search, _first_due(jobs, ranges[0], search.reach + 1), ranges[0])
    share = max(search.reach // len(ranges), 1000)
    # A retrying job is searched among all that are to run later: no index knows the attempt.
    state = state_condition(search.state) if search.state != "retrying" else _LATER
    # What ended too lately is not counted: the walk along the ends begins behind it.
    state &= search.age() if search.state in _ENDED else Q()
    ends = [_row_at(share, jobs.filter(state), number, index_range) for number, index_range in enumerate(ranges)]
    found = {number: edge for number, *edge in _union(ends)}
    cut = [
        _cut(index_range, *found[number]) if number in found else [index_range]
        for number, index_range in enumerate(ranges)
    ]
    return [part for parts in cut for part in parts] if found else []


def _cut(index_range: IndexRange, edge: Any, last_id: int) -> list[IndexRange]:
    if index_range.order != DUE_ORDER:
        # With one end only, PostgreSQL expects a third of a table that it has no statistics of, and reads all of it.
        other = {"pk__gte": Q(pk__lte=BIGGEST_ID), "pk__lte": Q(pk__gte=0)}.get(index_range.bound, Q())
        return [index_range._replace(where=index_range.where & Q(**{index_range.bound: edge}) & other)]
    # A million jobs registered at once have one run_at: the id must cut them too, and two ranges can do it.
    before, at = Q(run_at__lt=edge), Q(run_at=edge, pk__lte=last_id)
    return [index_range._replace(where=index_range.where & before), index_range._replace(where=index_range.where & at)]


def _among(search: JobSearch, ids: Sequence[int], index_range: IndexRange) -> list[IndexRange]:
    return [IndexRange(_is_one_of(_array(ids[:-1])), index_range.order)] if len(ids) > search.reach else []


def _is_one_of(array: Any) -> Q:
    words: dict[str, Any] = {"template": "%(expressions)s)", "arg_joiner": " = ANY ("}
    return Q(Func(F("pk"), array, output_field=BooleanField(), **words))


def _array(ids: Sequence[int]) -> Value:
    """One parameter, whatever their number: a statement cannot have 100,000."""
    return Value(list(ids), BigIntArrayField())


def _row_at(offset: int, jobs: QuerySet[Job], number: int, index_range: IndexRange) -> Any:
    column = index_range.bound.partition("__")[0]
    # Nothing but columns of the index, so that the heap is not read.
    known, order = (F("pk"), index_range.order) if index_range.order == DUE_ORDER else (Value(0), index_range.order[:1])
    ordered = (
        jobs.filter(index_range.where)
        .order_by(*order)
        .annotate(index_range=Value(number), edge=F(column), last_id=known)
    )
    return ordered.values_list("index_range", "edge", "last_id")[offset : offset + 1]


def find_ids(jobs: QuerySet[Job], ranges: Sequence[IndexRange], most: int | None) -> list[int]:
    """Return the ids of ``jobs`` in the order of the ranges, at most ``most``; with None all."""
    if ranges[0].pairs and most is not None:
        return _find_due(jobs, ranges[0], most)
    if len(ranges) == 1:
        return list(jobs.filter(ranges[0].where).order_by(*ranges[0].order).values_list("pk", flat=True)[:most])
    parts = [
        jobs.filter(index_range.where).order_by(*index_range.order).values_list("pk", "run_at")[:most]
        for index_range in ranges
    ]
    return [row[0] for row in _union(parts).order_by("run_at", "pk")[:most]]


def _find_due(jobs: QuerySet[Job], index_range: IndexRange, most: int) -> list[int]:
    """Look at the first due jobs, and at more of them while other conditions of ``jobs`` leave fewer than ``most``."""
    size = most
    while True:
        first = _first_due(jobs, index_range, size)
        there = set(jobs.filter(index_range.where, _is_one_of(_array(first))).order_by().values_list("pk", flat=True))
        if len(there) >= most or len(first) < size:
            return [job_id for job_id in first if job_id in there][:most]
        size *= DEEPER


def _first_due(jobs: QuerySet[Job], index_range: IndexRange, limit: int) -> list[int]:
    return store.first_due(store.on(jobs.db), index_range.pairs, later=index_range.later, limit=limit)


def _union(parts: Sequence[Any]) -> Any:
    return parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0]


def in_order(jobs: JobQuerySet, ids: Sequence[int]) -> list[Job]:
    """Return these jobs in this order; one that is gone meanwhile is left out."""
    rows = {job.pk: job for job in jobs.filter(pk__in=ids)}
    return [rows[job_id] for job_id in ids if job_id in rows]
