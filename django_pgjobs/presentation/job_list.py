"""The filters of a list of jobs, and how to read the list along an index.

``ORDER BY id DESC LIMIT 50`` is the trap of such lists: PostgreSQL walks the primary key backwards and, if the wanted
rows are rare and old, reads the whole table (a second at a million jobs). So every state has an order that its own
index provides:

* all jobs: newest id first (primary key)
* succeeded, cancelled, abandoned: latest end first (``pgjobs_job_ended``)
* ready, scheduled, retrying: earliest ``run_at`` first, one index range for each (queue, priority) that has jobs
  (``pgjobs_job_claim_order``); if there are very many, ``store.first_due`` finds their first ids
* waiting, parked, limited: by name only (``pgjobs_job_held``): sorting within a name would read all of its jobs
* running: newest id first, by the ids in the ledger of claims
* older than an age, in any state: oldest id first, since the newest jobs do not match
* tagged, in any state: newest id first, by the ids from the index of tags (``pgjobs_job_tags``)
* sleeping, or waiting for an event: newest id first, of the first ``NEAR_SUSPENDED`` ids from the index of open memos
* members of a batch: newest id first (``pgjobs_job_parent``); in some state only, among the first of these ids

None of those indexes has names, queues or texts, except for a queue's unfinished and a name's held jobs. So a list
searches for them among the first ``NEAR`` rows of the order (a text: ``NEAR_TEXT``), or ``FAR`` on request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from django.db.models import BooleanField, Case, F, Func, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from django_pgjobs.fields import BigIntArrayField
from django_pgjobs.models import Gate, Job, JobQuerySet, Memo
from django_pgjobs.presentation.wording import exactly
from django_pgjobs.states import GATHERING, LABELS, Hold, JobState, MemoKind, Outcome
from django_pgjobs.store import statements as store

MOST = 10_000
"""A list stops counting here and says "more than 10,000"."""

NEAR = 100_000
"""How many jobs to search for a name or a queue."""

NEAR_TEXT = 100_000
"""How many jobs to search for a text."""

NEAR_HELD = 5_000
"""How many held jobs to search for a queue or a text; each of their ids travels with the query."""

FAR = 1_000_000
"""``NEAR`` for a patient operator (a text takes a second or two)."""

FAR_HELD = 20_000
"""``NEAR_HELD`` for a patient operator."""

NEAR_SUSPENDED = 20_000
"""How many jobs that sleep or wait to look at; each is looked up in the table of jobs."""

FAR_SUSPENDED = 200_000
"""``NEAR_SUSPENDED`` for a patient operator."""

SUSPENDED: dict[str, MemoKind] = {"sleeping": MemoKind.SLEEP, "waiting_for_event": MemoKind.EVENT}
"""What a suspended job does, in the codes of ``why`` → the kind of its memo."""

MOST_RANGES = 40
"""PostgreSQL merges up to this many (queue, priority) pairs; planning more would take longer than the list."""

DEEPER = 4
"""The factor by which a list looks further when other conditions leave it too few jobs."""

OPEN_BATCHES = "open"
"""What to write instead of a batch's id, to list the batches that are open for members."""

BIGGEST_ID = 2**63 - 1
TEXT_LIMIT = 200
STATES: tuple[str, ...] = (
    JobState.READY.value, *LABELS, *(state.value for state in JobState if state != JobState.READY),
)  # fmt: skip
"""The states to choose from; *ready* here means due."""

_ID = re.compile(r"#?0*([0-9]{1,30})")
_DUE = frozenset({JobState.READY.value, *LABELS})
_ENDED = frozenset(outcome.value for outcome in Outcome)
_HELD = frozenset(hold.value for hold in Hold)
_ARRAY = "ARRAY(%(subquery)s)"
_LATER = Q(state=JobState.READY.value, run_at__gt=Now())

_ASLEEP = Q(finished_at=None, claim_id=None, ending=None, run_at__gt=Now())

_ANY_ID = Q(pk__gte=0, pk__lte=BIGGEST_ID)
"""For members: without statistics PostgreSQL expects more of them than within bounds, and reads all to sort them."""

DUE_ORDER = ("run_at", "pk")

Pairs = Sequence[tuple[str, int]]


class IndexRange(NamedTuple):
    """The part of a list that one index range answers: its condition, its order, and the lookup that can bound it.

    ``pairs`` is set for a list of due jobs with too many pairs for a range each; ``later`` if those jobs run later.
    """

    where: Q
    order: tuple[str, ...]
    bound: str = "run_at"
    pairs: Pairs = ()
    later: bool = False


@dataclass(frozen=True, slots=True)
class JobSearch:
    """A list's filters and search, as words; ``problem`` is true if they are invalid."""

    state: str = ""
    queue: str = ""
    name: str = ""
    text: str = ""
    job_id: int | None = None
    reach: int = NEAR
    description: str = ""
    key: str = ""
    tag: str = ""
    batch: int | None = None
    """The id of a batch or flow, to list its members."""
    are_open: bool = False
    """Whether to list batches that are open for members."""
    since: float | None = None
    """Seconds; ``since`` keeps younger jobs, ``older`` older ones: by end for an ended state, else by registration."""
    older: float | None = None
    suspended: str = ""
    """A key of ``SUSPENDED``: list the jobs that sleep, or wait for an event."""
    problem: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, params: Any, search: str) -> JobSearch:
        """Read a search from a query dict (``state``, ``suspended``, ``queue``, …) and a search term."""
        state, queue, name, tag, batch = (params.get(key, "") for key in ("state", "queue", "name", "tag", "batch"))
        text, job_id = parse_search(search)
        are_open = batch == OPEN_BATCHES
        members_of = None if are_open else parse_search(batch)[1]
        problem = "\0" in queue + name + tag or bool(state and state not in STATES)
        problem |= bool(batch) and not are_open and members_of is None
        suspended = params.get("suspended", "")
        problem |= bool(suspended) and suspended not in SUSPENDED
        if are_open:
            state, name = state or JobState.WAITING, name or GATHERING[0]
        suspended = "" if problem else suspended
        reach = reach_of(state, text, far=params.get("reach") == "far", batch=members_of, suspended=suspended)
        return cls(
            "" if problem else state, queue, name, text, job_id, reach, tag=tag, batch=members_of, are_open=are_open,
            suspended=suspended, problem=problem,
        )  # fmt: skip

    @property
    def words(self) -> str:
        """The filters as an operator would type them: *state ready, queue mail, "order 17"*; empty for none."""
        named = {name: getattr(self, name) for name in ("state", "queue", "name", "tag", "description", "key")}
        words = [f"{name} {value}" for name, value in named.items() if value]
        words += [self.suspended.replace("_", " ")] if self.suspended else []
        words += [f"members of {self.batch}"] if self.batch is not None else []
        words += ["open batches"] if self.are_open else []
        words += [f"since {exactly(self.since)} ago"] if self.since is not None else []
        words += [f"older than {exactly(self.older)}"] if self.older is not None else []
        words += [f"id {self.job_id}"] if self.job_id is not None else []
        return ", ".join([*words, f'"{self.text}"'] if self.text else words)

    def reaches(self, *, far: bool) -> int:
        """Return how many jobs this search examines if it is bounded."""
        return reach_of(self.state, self.text, far=far, batch=self.batch, suspended=self.suspended)

    @property
    def bounded(self) -> bool:
        """Whether the search may cover only a part of the jobs."""
        if self.by_memo:
            return True
        if self.job_id is not None or self.state == JobState.RUNNING or self.tag:
            return False
        rest = bool(self.text or self.description or self.key or self.are_open)
        if self.batch is not None:
            aged = self.since is not None or self.older is not None
            return rest or aged or bool(self.state or self.queue or self.name or self.suspended)
        aged = self.state not in _ENDED and (self.since is not None or self.older is not None)
        if self.state in _HELD:
            return bool(self.queue) or rest or aged
        by_queue = bool(self.queue) and self.state not in _DUE
        return by_queue or rest or aged or bool(self.name) or self.state == "retrying"

    def where(self) -> Q:
        """The condition of the filters, without search and bound."""
        found = self._but_members()
        if self.by_memo:
            return found & _is_one_of(Subquery(self.sleepers(), template=_ARRAY))
        return found if self.batch is None else found & Q(parent_id=self._batch_id)

    def listed(self) -> Q:
        """The condition of the filters for a list: of members, those within ``reach`` where it is bounded."""
        if self.by_memo:
            return self._but_members() & _is_one_of(Subquery(self.sleepers()[: self.reach], template=_ARRAY))
        if self.batch is None or not self.bounded:
            return self.where()
        # In an array: otherwise PostgreSQL might look for the few members among all jobs of their state.
        return self._but_members() & _is_one_of(Subquery(self.members()[: self.reach], template=_ARRAY))

    @property
    def by_memo(self) -> bool:
        """Whether the index of open memos leads to the jobs."""
        return bool(self.suspended) and self.batch is None and self.job_id is None

    def sleepers(self) -> QuerySet[Any, Any]:
        """The ids of the jobs with a memo that says that they sleep, or wait, in the order of its index."""
        memos = Memo.objects.filter(kind=SUSPENDED[self.suspended], finished_at=None)
        return memos.order_by("event").values_list("job_id", flat=True)

    def members(self) -> QuerySet[Any, Any]:
        """The ids of the batch's members, newest first, by its index alone."""
        return Job.objects.filter(_ANY_ID, parent_id=self._batch_id).order_by("-pk").values_list("pk", flat=True)

    @property
    def _batch_id(self) -> int:
        return min(self.batch or 0, BIGGEST_ID)

    def _but_members(self) -> Q:
        found = state_condition(self.state)
        if self.are_open:
            # Not EXISTS, which PostgreSQL may answer with a hash of all gates.
            hands = Subquery(Gate.objects.filter(job_id=OuterRef("pk")).values("hands")[:1])
            found &= Q(GreaterThan(hands, 0))
        if self.suspended:
            found &= _ASLEEP if self.by_memo else _ASLEEP & _remembers(SUSPENDED[self.suspended])
        for column in ("queue", "name"):
            if value := getattr(self, column):
                found &= Q(**{column: value})
        found &= Q(key=self.key) if self.key else Q()
        if self.tag:
            # PostgreSQL builds an array once; it may run a subquery of IN again for each job that it reads.
            tagged = Job.objects.filter(tags__contains=[self.tag]).values("pk")[:FAR]
            found &= _is_one_of(Subquery(tagged, template=_ARRAY))
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
        """The index ranges that hold the matching jobs; ``pairs`` are all (queue, priority) with unfinished jobs."""
        if self.job_id is not None or self.state == JobState.RUNNING or self.tag or self.by_memo:
            return [IndexRange(Q(), ("-pk",))]
        if self.batch is not None:
            return [IndexRange(_ANY_ID, ("-pk",))]
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
    """Return (text, id) of a search term: digits, with or without #, are an id unless quoted."""
    term = search.strip()[:TEXT_LIMIT]
    if match := _ID.fullmatch(term):
        return "", int(match[1])
    return term.strip('"'), None


def reach_of(state: str, text: str, *, far: bool, batch: int | None = None, suspended: str = "") -> int:
    """Return how many jobs a bounded search examines; in a ``batch``, its members."""
    if suspended and batch is None:
        return FAR_SUSPENDED if far else NEAR_SUSPENDED
    if state in _HELD and batch is None:
        return FAR_HELD if far else NEAR_HELD
    return FAR if far else NEAR_TEXT if text else NEAR


def state_condition(state: str) -> Q:
    """Return the condition of a state or label; an empty one sets no condition."""
    if state == JobState.READY:
        return Q(state=JobState.READY.value, run_at__lte=Now())
    if state in LABELS:
        return _LATER & (Q(attempt__gt=0) if state == "retrying" else Q(attempt=0))
    if state in _HELD:
        # Not Q(state=…): beside "hold = 'parked'" its "hold IS NOT NULL" makes PostgreSQL expect a tenth of the rows,
        # and read them all to sort them.
        return Q(hold=state, claim_id__isnull=True, finished_at__isnull=True)
    return Q(state=state) if state else Q()


def _remembers(kind: MemoKind) -> Q:
    """Return the condition of jobs with an open memo of this kind."""
    # In CASE: else PostgreSQL may look for the few memos of a job among all open ones of the kind. And not EXISTS,
    # which it may answer with a hash of all memos.
    kinds = Case(When(finished_at=None, then=F("kind")), output_field=TextField())
    memos = Memo.objects.filter(job_id=OuterRef("pk")).annotate(open_kind=kinds).filter(open_kind=kind)
    return Q(GreaterThan(Subquery(memos.values("pk")[:1]), 0))


def search_condition(text: str, job_id: int | None) -> Q:
    """Return the condition of a search: exactly this id, or a part of name or description."""
    if job_id is not None:
        return Q(pk=job_id) if job_id <= BIGGEST_ID else Q(pk__in=[])
    return Q(name__icontains=text) | Q(description__icontains=text) if text else Q()


def bounded(search: JobSearch, jobs: QuerySet[Job], ranges: Sequence[IndexRange]) -> list[IndexRange]:
    """Return the ranges, cut to their first ``search.reach`` jobs together; empty if there are no more than that."""
    if search.by_memo:
        # Not exists(), which would drop the order, and with it the index.
        return list(ranges) if list(search.sleepers().using(jobs.db)[search.reach : search.reach + 1]) else []
    if search.batch is not None:
        more = search.members().using(jobs.db)[search.reach : search.reach + 1]
        return list(ranges) if more.exists() else []
    if search.state in _HELD:
        # Thousands of jobs may share a name, so a name cannot be the edge; use the ids themselves.
        named = Q(name=search.name) if search.name else Q()
        held = jobs.filter(state_condition(search.state), named).order_by(*ranges[0].order).values_list("pk", flat=True)
        return _among(search, list(held[: search.reach + 1]), ranges[0])
    if ranges[0].pairs:
        return _among(search, _first_due(jobs, ranges[0], search.reach + 1), ranges[0])
    share = max(search.reach // len(ranges), 1000)
    # No index has the attempt, so search for retrying jobs among all that run later.
    state = state_condition(search.state) if search.state != "retrying" else _LATER
    # Do not count jobs that ended too lately: the walk along the ends starts after them.
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
        # With one bound only and no statistics, PostgreSQL expects a third of the table and reads all of it.
        other = {"pk__gte": Q(pk__lte=BIGGEST_ID), "pk__lte": Q(pk__gte=0)}.get(index_range.bound, Q())
        return [index_range._replace(where=index_range.where & Q(**{index_range.bound: edge}) & other)]
    # A million jobs registered together share one run_at, so the id must cut them too; that takes two ranges.
    before, at = Q(run_at__lt=edge), Q(run_at=edge, pk__lte=last_id)
    return [index_range._replace(where=index_range.where & before), index_range._replace(where=index_range.where & at)]


def _among(search: JobSearch, ids: Sequence[int], index_range: IndexRange) -> list[IndexRange]:
    return [IndexRange(_is_one_of(_array(ids[:-1])), index_range.order)] if len(ids) > search.reach else []


def _is_one_of(array: Any) -> Q:
    words: dict[str, Any] = {"template": "%(expressions)s)", "arg_joiner": " = ANY ("}
    return Q(Func(F("pk"), array, output_field=BooleanField(), **words))


def _array(ids: Sequence[int]) -> Value:
    """Pass the ids as one parameter: a statement cannot have 100,000."""
    return Value(list(ids), BigIntArrayField())


def _row_at(offset: int, jobs: QuerySet[Job], number: int, index_range: IndexRange) -> Any:
    column = index_range.bound.partition("__")[0]
    # Select only columns of the index, so that PostgreSQL does not read the heap.
    known, order = (F("pk"), index_range.order) if index_range.order == DUE_ORDER else (Value(0), index_range.order[:1])
    ordered = (
        jobs.filter(index_range.where)
        .order_by(*order)
        .annotate(index_range=Value(number), edge=F(column), last_id=known)
    )
    return ordered.values_list("index_range", "edge", "last_id")[offset : offset + 1]


def find_ids(jobs: QuerySet[Job], ranges: Sequence[IndexRange], most: int | None) -> list[int]:
    """Return the ids of ``jobs`` in the order of the ranges, at most ``most``; None returns all."""
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
    """Find the first due jobs; look further while other conditions of ``jobs`` leave fewer than ``most``."""
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
    """Return these jobs in this order, without those deleted in the meantime."""
    rows = {job.pk: job for job in jobs.filter(pk__in=ids)}
    return [rows[job_id] for job_id in ids if job_id in rows]
