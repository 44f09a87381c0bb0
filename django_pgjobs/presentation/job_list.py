"""Reads a list of jobs along an index.

``ORDER BY id DESC LIMIT 50`` is the trap of such lists: PostgreSQL walks the primary key backwards and, if the wanted
rows are rare and old, reads the whole table (a second at a million jobs). Every state therefore has an order that its
own index provides:

* all jobs: newest id first (primary key)
* succeeded, cancelled, abandoned: latest end first (``pgjobs_job_ended``)
* ready: earliest ``run_at`` first, one index range for each (queue, priority) that has jobs
  (``pgjobs_job_claim_order``); if there are very many, ``counting.first_due`` finds their first ids
* scheduled, retrying: earliest ``run_at`` first, always so; retrying ones may be held, too (``pgjobs_job_held_order``)
* blocked, parked, limited: by name only (``pgjobs_job_held``): sorting within a name would read all of its jobs
* running: newest id first, by the ids in the ledger of claims
* older than an age, in any state: oldest id first, since the newest jobs do not match
* tagged, in any state: newest id first, by the ids from the index of tags (``pgjobs_job_tags``); if very many are, in
  the order of their state
* sleeping, or waiting for an event: newest id first, of the first ``NEAR_SUSPENDED`` ids from the index of open memos
* abandoned with one error class: latest end first (``pgjobs_job_error_class``)
* what a worker runs: by the ids in its claims
* members of a batch: newest id first (``pgjobs_job_parent``); in some state only, among the first of these ids

None of those indexes has names, queues or texts, except for a queue's unfinished and a name's held jobs. A list
therefore searches for them among the first rows of the order, as many as ``reach`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from django.db.models import F, Q, QuerySet, Value

from django_pgjobs.models import Job
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.job_conditions import (
    ANY_ID,
    BIGGEST_ID,
    array_of,
    is_one_of,
    state_condition,
    tagged,
)
from django_pgjobs.presentation.job_search import DUE, JobSearch
from django_pgjobs.presentation.reach import ENDED, HELD
from django_pgjobs.states import LABELS, Hold, JobState
from django_pgjobs.store import counting, troubles
from django_pgjobs.store.database import on

Row = TypeVar("Row", bound=Job)

MOST = 10_000
"""A list stops counting here and says "more than 10,000"."""

MOST_SCHEDULED = 2_000
"""``MOST`` for scheduled jobs: no index tells them from retrying ones, and each that is looked at may be a page."""

MOST_RANGES = 40
"""PostgreSQL merges up to this many (queue, priority) pairs; planning more would take longer than the list."""

DEEPER = 4
"""The factor by which a list looks further when other conditions leave it too few jobs."""

DUE_ORDER = ("run_at", "pk")

Pairs = Sequence[tuple[str, int]]


class IndexRange(NamedTuple):
    """The part of a list that one index range answers: its condition, its order, and the lookup that can bound it.

    ``pairs`` is set for a list of due jobs with too many pairs for a range each; ``later`` if those jobs run later.
    ``held``: the queue, or an empty text for all, whose limited and paused jobs are meant too.
    """

    where: Q
    order: tuple[str, ...]
    bound: str = "run_at"
    pairs: Pairs = ()
    later: bool = False
    held: str | None = None

    @property
    def is_ranked(self) -> bool:
        """True if ``counting.first_due`` finds its first ids."""
        return bool(self.pairs) or self.held is not None


def settled(search: JobSearch, using: str) -> JobSearch:
    """Return the search with what only the database knows: whether its tag is common."""
    if search.problem or not search.by_tag:
        return search
    most, far = reach.NEAR_TAGGED, search.reach == search.reaches(far=True)
    found = replace(search, tag_is_common=len(tagged(search.tag).using(using)[: most + 1]) > most)
    return replace(found, reach=found.reaches(far=far))


def ranges_of(search: JobSearch, pairs: Pairs) -> list[IndexRange]:
    """Return the index ranges that hold the matching jobs; ``pairs``: all (queue, priority) with unfinished jobs."""
    if (
        search.job_id is not None
        or search.state == JobState.RUNNING
        or search.by_tag
        or search.by_memo
        or search.action is not None
    ):
        return [IndexRange(Q(), ("-pk",))]
    if search.batch is not None:
        return [IndexRange(ANY_ID, ("-pk",))]
    if search.state in DUE:
        return _due_ranges(search, [pair for pair in pairs if search.queue in ("", pair[0])])
    if search.state in ENDED:
        # With the class in the order too, the index of classes has it.
        order = ("-error_class", "-finished_at", "-pk") if search.by_error else ("-finished_at", "-pk")
        return [IndexRange(Q(), order, "finished_at__gte")]
    if search.older_at is not None and search.since_at is None and search.since is None:
        return [IndexRange(Q(), ("pk",), "pk__lte")]
    if search.state in HELD:
        return [IndexRange(Q(), ("name",))]
    if search.older is not None and search.since is None:
        return [IndexRange(Q(), ("pk",), "pk__lte")]
    return [IndexRange(Q(), ("-pk",), "pk__gte")]


def _due_ranges(search: JobSearch, pairs: Pairs) -> list[IndexRange]:
    # No index tells scheduled jobs from retrying ones: find the first ids of both by the index alone.
    if not 0 < len(pairs) <= MOST_RANGES or search.state in LABELS:
        in_queue = Q(queue=search.queue) if search.queue else Q()
        held = search.queue if search.state == "retrying" else None
        return [IndexRange(in_queue, DUE_ORDER, pairs=pairs, later=search.state in LABELS, held=held)]
    return [IndexRange(Q(queue=queue, priority=priority), DUE_ORDER) for queue, priority in pairs]


def bounded(search: JobSearch, jobs: QuerySet[Job], ranges: Sequence[IndexRange]) -> list[IndexRange]:
    """Return the ranges, cut to their first ``search.reach`` jobs together; empty if there are no more than that."""
    if search.by_memo:
        # Not exists(), which would drop the order, and with it the index.
        return list(ranges) if list(search.sleepers().using(jobs.db)[search.reach : search.reach + 1]) else []
    if search.batch is not None:
        more = search.members().using(jobs.db)[search.reach : search.reach + 1]
        return list(ranges) if more.exists() else []
    if search.state in HELD:
        # Thousands of jobs may share a name, so a name cannot be the edge; use the ids themselves.
        named = Q(name=search.name) if search.name else Q()
        held = jobs.filter(state_condition(search.state), named).order_by(*ranges[0].order).values_list("pk", flat=True)
        return _among(search, list(held[: search.reach + 1]), ranges[0])
    if ranges[0].is_ranked:
        return _among(search, _first_due(jobs, ranges[0], search.reach + 1), ranges[0])
    share = max(search.reach // len(ranges), 1000)
    state = state_condition(search.state)
    # Do not count jobs that ended too lately: the walk along the ends starts after them.
    state &= search.age() if search.state in ENDED else Q()
    ends = [_row_at(share, jobs.filter(state), number, index_range) for number, index_range in enumerate(ranges)]
    found = {number: edge for number, *edge in _union(ends)}
    cut = [
        _cut(index_range, *found[number]) if number in found else [index_range]
        for number, index_range in enumerate(ranges)
    ]
    return [part for parts in cut for part in parts] if found else []


def _cut(index_range: IndexRange, edge: object, last_id: int) -> list[IndexRange]:
    if index_range.order != DUE_ORDER:
        # With one bound only and no statistics, PostgreSQL expects a third of the table and reads all of it.
        other = {"pk__gte": Q(pk__lte=BIGGEST_ID), "pk__lte": Q(pk__gte=0)}.get(index_range.bound, Q())
        return [index_range._replace(where=index_range.where & Q(**{index_range.bound: edge}) & other)]
    # A million jobs registered together share one run_at, so the id must cut them too; that takes two ranges.
    before, at = Q(run_at__lt=edge), Q(run_at=edge, pk__lte=last_id)
    return [index_range._replace(where=index_range.where & before), index_range._replace(where=index_range.where & at)]


def _among(search: JobSearch, ids: Sequence[int], index_range: IndexRange) -> list[IndexRange]:
    return [IndexRange(is_one_of(array_of(ids[:-1])), index_range.order)] if len(ids) > search.reach else []


def _row_at(offset: int, jobs: QuerySet[Job], number: int, index_range: IndexRange) -> object:
    column = index_range.bound.partition("__")[0]
    # Select only columns of the index, so that PostgreSQL does not read the heap.
    known, order = (F("pk"), index_range.order) if index_range.order == DUE_ORDER else (Value(0), index_range.order[:1])
    ordered = (
        jobs.filter(index_range.where)
        .order_by(*order)
        .annotate(index_range=Value(number), edge=F(column), last_id=known)
    )
    return ordered.values_list("index_range", "edge", "last_id")[offset : offset + 1]


def most_of(search: JobSearch) -> int:
    """Return at how many jobs this list stops counting."""
    return min(MOST, MOST_SCHEDULED) if search.state == "scheduled" else MOST


def find_ids(jobs: QuerySet[Job], ranges: Sequence[IndexRange], most: int | None) -> list[int]:
    """Return the ids of ``jobs`` in the order of the ranges, at most ``most``; None returns all."""
    if ranges[0].is_ranked and most is not None:
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
        there = set(jobs.filter(index_range.where, is_one_of(array_of(first))).order_by().values_list("pk", flat=True))
        if len(there) >= most or len(first) < size:
            return [job_id for job_id in first if job_id in there][:most]
        # As deep as the share of those found says, and a bit more: each job looked at may be a page of the table.
        size = min(size * DEEPER, size * most * 6 // (5 * max(len(there), 1)) + 1)


def _first_due(jobs: QuerySet[Job], index_range: IndexRange, limit: int) -> list[int]:
    db = on(jobs.db)
    among = [] if index_range.held is None else troubles.list_held_pairs(db)
    held = [pair for pair in among if pair[1] in (Hold.LIMITED, Hold.PAUSED) and index_range.held in ("", pair[0])]
    return counting.first_due(db, index_range.pairs, later=index_range.later, limit=limit, held=held)


def _union(parts: Sequence[Any]) -> Any:
    return parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0]


def in_order(jobs: QuerySet[Row], ids: Sequence[int]) -> list[Row]:
    """Return these jobs in this order, without those deleted in the meantime."""
    rows = {job.pk: job for job in jobs.filter(pk__in=ids)}
    return [rows[job_id] for job_id in ids if job_id in rows]
