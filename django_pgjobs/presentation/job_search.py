"""The filters of a list of jobs: how they are written, what they mean, and which of them no index answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from django_pgjobs.definition.registry import registry
from django_pgjobs.models import ActionPart, Gate, Job, Memo
from django_pgjobs.presentation import reach as reaches
from django_pgjobs.presentation.fronts import FRONTS, has_alias, has_front
from django_pgjobs.presentation.job_conditions import (
    ANY_ID,
    ARRAY,
    ASLEEP,
    BIGGEST_ID,
    argument_condition,
    claimed_by,
    each_of,
    has_tag,
    is_one_of,
    remembers,
    state_condition,
    tagged,
    workers_named,
)
from django_pgjobs.presentation.reach import ENDED, HELD
from django_pgjobs.presentation.search_words import (
    ENDED_WORDS,
    NO_ERROR,
    TERM_LIMIT,
    age,
    complaint_of,
    moment,
    taken_apart,
    too_long,
)
from django_pgjobs.presentation.wording import exactly
from django_pgjobs.states import BUILT_IN, GATHERING, LABELS, JobState, MemoKind, Outcome
from django_pgjobs.values.built_in import OWN_QUEUE, SERVANTS

SUSPENDED: dict[str, MemoKind] = {"sleeping": MemoKind.SLEEP, "waiting_for_event": MemoKind.EVENT}
"""Code of ``why`` for a suspended job → the kind of its memo."""

OPEN_BATCHES = "open"
"""Stands for a batch's id, to list the batches that are open for members."""

STATES: tuple[str, ...] = (
    JobState.READY.value, *LABELS, *(state.value for state in JobState if state != JobState.READY),
)  # fmt: skip
"""The states to choose from; *ready* here means due."""

_WORDED = ("state", "queue", "name", "tag", "description", "key", "error", "worker", "cron", "front", "alias")
_ID = re.compile(r"#?0*([0-9]{1,30})")
DUE = frozenset({JobState.READY.value, *LABELS})


@dataclass(frozen=True, slots=True)
class JobSearch:
    """A list's filters and search, as words; ``problem`` is true if they are invalid."""

    state: str = ""
    queue: str = ""
    name: str = ""
    text: str = ""
    job_id: int | None = None
    reach: int = reaches.NEAR
    description: str = ""
    key: str = ""
    tag: str = ""
    tag_is_common: bool = False
    """True if more jobs have the tag than its index is quick for."""
    batch: int | None = None
    """The id of a batch or flow, to list its members."""
    are_open: bool = False
    """True to list batches that are open for members."""
    since: float | None = None
    """Seconds; ``since`` keeps younger jobs, ``older`` older ones: by end for an ended state, else by registration."""
    older: float | None = None
    since_at: datetime | None = None
    older_at: datetime | None = None
    """The same as instants."""
    suspended: str = ""
    """A key of ``SUSPENDED``: list the jobs that sleep, or wait for an event."""
    error: str = ""
    """The class of the error of abandoned jobs, or if not ``exact_error`` its end after a dot."""
    exact_error: bool = False
    worker: str = ""
    """The name or the id of a worker: list what it runs, or of an ended state what it ended."""
    cron: str = ""
    """The name of a cron entry that has registered the jobs."""
    front: str = ""
    """A key of ``FRONTS``: list jobs that were declared so."""
    alias: str = ""
    """The alias of ``TASKS`` of tasks."""
    action: int | None = None
    """The number of an operator's action: list the jobs that it changed."""
    ended: str = ""
    """*no* lists jobs that have not ended, *yes* those that have."""
    argument: tuple[str, str] | None = None
    """The name of an argument, and its value as typed."""
    by_ids: bool = False
    """True if the caller names the jobs by their ids, too."""
    reveal: bool = False
    """True if the searcher may see sensitive arguments: no other user finds a job by one."""
    complaint: str = field(default="", compare=False)
    """Problem of the search term, in words for people."""
    problem: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, params: Any, search: str, *, reveal: bool = False) -> JobSearch:
        """Read a search from a query dict (``state``, ``suspended``, ``queue``, …) and a search term."""
        searched = taken_apart(search.strip()[:TERM_LIMIT])
        words = searched.values
        state, batch = params.get("state", ""), params.get("batch", "")
        queue, name, tag, front, alias = (
            params.get(key, "") or words.get(key, "") for key in ("queue", "name", "tag", "front", "alias")
        )
        text, job_id = parse_search(search)
        if not state:
            state = Outcome.ABANDONED.value if words.get("error") else JobState.RUNNING if words.get("worker") else ""
        are_open = batch == OPEN_BATCHES
        members_of = None if are_open else parse_search(batch)[1]
        problem = "\0" in queue + name + tag + alias or bool(state and state not in STATES)
        problem |= bool(front) and front not in FRONTS and "front" not in words
        problem |= bool(batch) and not are_open and members_of is None
        suspended = params.get("suspended", "")
        problem |= bool(suspended) and suspended not in SUSPENDED
        if are_open:
            state, name = state or JobState.WAITING, name or GATHERING[0]
        suspended = "" if problem else suspended
        found = cls(
            "" if problem else state, queue, name, text, job_id, tag=tag, batch=members_of, are_open=are_open,
            suspended=suspended, problem=problem, key=words.get("key", ""), error=words.get("error", ""),
            exact_error=searched.exact_error, worker=words.get("worker", ""), cron=words.get("cron", ""),
            front=front if front in FRONTS else "", alias=alias,
            argument=searched.argument, action=_number(words.get("action", "")),
            ended=words["ended"] if words.get("ended") in ENDED_WORDS else "",
            since=age(words.get("since", "")), older=age(words.get("older", "")),
            since_at=moment(words.get("since", "")), older_at=moment(words.get("older", "")),
            reveal=reveal, complaint=too_long(search.strip()) or complaint_of(searched),
        )  # fmt: skip
        return replace(found, reach=found.reaches(far=params.get("reach") == "far"))

    @property
    def words(self) -> str:
        """The filters as an operator would type them: *state ready, queue mail, "order 17"*; empty for none."""
        named = {name: getattr(self, name) for name in _WORDED}
        words = [f"{name} {value}" for name, value in named.items() if value]
        words += [self.suspended.replace("_", " ")] if self.suspended else []
        words += [f"members of {self.batch}"] if self.batch is not None else []
        words += ["open batches"] if self.are_open else []
        words += [f"since {exactly(self.since)} ago"] if self.since is not None else []
        words += [f"older than {exactly(self.older)}"] if self.older is not None else []
        words += [f"since {self.since_at:%Y-%m-%d %H:%M}"] if self.since_at else []
        words += [f"until {self.older_at:%Y-%m-%d %H:%M}"] if self.older_at else []
        words += [f"argument {_worded(*self.argument)}"] if self.argument else []
        words += [f"action {self.action}"] if self.action is not None else []
        words += [{"yes": "ended", "no": "not ended"}[self.ended]] if self.ended else []
        words += [f"id {self.job_id}"] if self.job_id is not None else []
        return ", ".join([*words, f'"{self.text}"'] if self.text else words)

    def reaches(self, *, far: bool) -> int:
        """Return how many jobs this search examines if it is bounded."""
        if self.argument:
            return reaches.FAR_ARGUMENTS if far else reaches.NEAR_ARGUMENTS
        found = reaches.reach_of(self.state, self.text, far=far, batch=self.batch, suspended=self.suspended)
        return min(found, reaches.NEAR_COMMON) if self.tag_is_common and not far else found

    @property
    def bounded(self) -> bool:
        """True if the search may cover only a part of the jobs."""
        if self.by_memo:
            return True
        if self.job_id is not None or self.state == JobState.RUNNING or self.by_tag or self.action is not None:
            return False
        rest = bool(self.text or self.description or self.key or self.are_open or self.argument or self.worker)
        rest = rest or bool(self.front or self.alias or self.ended)
        rest = rest or self.tag_is_common
        rest = rest or (bool(self.cron) and bool(self.state))
        rest = rest or (bool(self.error) and not self.by_error)
        if self.batch is not None:
            filters = self.state or self.queue or self.name or self.tag or self.suspended
            return rest or self.is_aged or bool(filters)
        aged = self.state not in ENDED and self.is_aged
        if self.state in HELD:
            return bool(self.queue) or rest or aged
        by_queue = bool(self.queue) and self.state not in DUE
        return by_queue or rest or aged or bool(self.name) or self.state == "retrying"

    @property
    def is_aged(self) -> bool:
        """True if only jobs of some age are wanted."""
        return any(bound is not None for bound in (self.since, self.older, self.since_at, self.older_at))

    @property
    def by_tag(self) -> bool:
        """True if the index of tags leads to the jobs."""
        others = self.batch is not None or self.by_memo or self.state == JobState.RUNNING
        return bool(self.tag) and not self.tag_is_common and not others

    @property
    def by_error(self) -> bool:
        """True if the index of error classes leads to the jobs."""
        return self.exact_error and self.state == Outcome.ABANDONED and bool(self.error) and self.batch is None

    def where(self) -> Q:
        """The condition of the filters, without search and bound."""
        found = self._but_members()
        if self.by_memo:
            return found & is_one_of(Subquery(self.sleepers(), template=ARRAY))
        return found if self.batch is None else found & Q(parent_id=self._batch_id)

    def listed(self) -> Q:
        """The condition of the filters for a list: of members, those within ``reach`` where it is bounded."""
        if self.by_memo:
            return self._but_members() & is_one_of(Subquery(self.sleepers()[: self.reach], template=ARRAY))
        if self.batch is None or not self.bounded:
            return self.where()
        # In an array: otherwise PostgreSQL might look for the few members among all jobs of their state.
        return self._but_members() & is_one_of(Subquery(self.members()[: self.reach], template=ARRAY))

    @property
    def by_memo(self) -> bool:
        """True if the index of open memos leads to the jobs."""
        return bool(self.suspended) and self.batch is None and self.job_id is None

    def sleepers(self) -> QuerySet[Any, Any]:
        """The ids of the jobs with a memo that says that they sleep, or wait, in the order of its index."""
        memos = Memo.objects.filter(kind=SUSPENDED[self.suspended], finished_at=None)
        return memos.order_by("event").values_list("job_id", flat=True)

    def members(self) -> QuerySet[Any, Any]:
        """The ids of the batch's members, newest first, by its index alone."""
        return Job.objects.filter(ANY_ID, parent_id=self._batch_id).order_by("-pk").values_list("pk", flat=True)

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
            found &= ASLEEP if self.by_memo else ASLEEP & remembers(SUSPENDED[self.suspended])
        for column in ("queue", "name"):
            if value := getattr(self, column):
                found &= Q(**{column: value})
        found &= Q() if self.shows_servants else ~Q(name__in=sorted(SERVANTS))
        found &= Q(key=self.key) if self.key else Q()
        if self.tag:
            ids = Subquery(tagged(self.tag)[: reaches.FAR], template=ARRAY)
            found &= is_one_of(ids) if self.by_tag else has_tag(self.tag)
        found &= Q(description__icontains=self.description) if self.description else Q()
        found &= self._of_error() & self._of_worker() & (Q(cron_entry=self.cron) if self.cron else Q())
        found &= self._of_action()
        found &= Q(finished_at__isnull=self.ended == "no") if self.ended else Q()
        found &= has_front(self.front) if self.front else Q()
        found &= has_alias(self.alias) if self.alias else Q()
        found &= argument_condition(*self.argument, reveal=self.reveal) if self.argument else Q()
        return found & self.age()

    def _of_action(self) -> Q:
        if self.action is None:
            return Q()
        return is_one_of(each_of(ActionPart.objects.filter(action_id=min(self.action, BIGGEST_ID))))

    @property
    def shows_servants(self) -> bool:
        """True if this package's own jobs are among the others: where asked for, where they run, where they failed.

        Elsewhere an action on a whole list would mean them by mistake.
        """
        asked = self.queue == OWN_QUEUE or self.name in SERVANTS or BUILT_IN in self.text
        by_id = self.by_ids or self.job_id is not None or self.batch is not None or self.action is not None
        found = by_id or bool(self.worker) or self.by_memo
        return asked or found or self.state in (JobState.RUNNING, Outcome.ABANDONED)

    def _of_error(self) -> Q:
        if not self.error:
            return Q()
        if self.error == NO_ERROR and not self.exact_error:
            return Q(error_class=None) if self.state in ENDED else Q(error="")
        if self.state not in ENDED:
            # The text of the last error begins with the name of its class.
            last = self.error.rpartition(".")[2]
            return Q(error=last) | Q(error__startswith=f"{last}:")
        exact = Q(error_class=self.error, finished_at__isnull=False)
        return exact if self.exact_error else exact | Q(error_class__endswith=f".{self.error}")

    def _of_worker(self) -> Q:
        if not self.worker:
            return Q()
        if self.state in ENDED:
            return Q(worker__in=workers_named(self.worker).values("pk"))
        return claimed_by(self.worker)

    def age(self) -> Q:
        """The condition of age."""
        column = "finished_at" if self.state in ENDED else "created_at"
        found = Q()
        if self.since is not None:
            found &= Q(**{f"{column}__gte": Now() - timedelta(seconds=self.since)})
        if self.older is not None:
            found &= Q(**{f"{column}__lte": Now() - timedelta(seconds=self.older)})
        found &= Q(**{f"{column}__gte": self.since_at}) if self.since_at else Q()
        # Not the instant itself: the next span of a chart begins there.
        return found & (Q(**{f"{column}__lt": self.older_at}) if self.older_at else Q())


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 30 else None


def _worded(name: str, value: str) -> str:
    """*tenant: globex*; only the name of an argument that is sensitive in some job."""
    hidden = any(name in (definition.sensitive or ()) for definition in registry.definitions())
    return name if hidden else f"{name}: {value[:100]}"


def parse_search(search: str) -> tuple[str, int | None]:
    """Return (text, id) of a search term: digits, with or without #, are an id unless quoted."""
    term = taken_apart(search.strip()[:TERM_LIMIT]).text
    if match := _ID.fullmatch(term):
        return "", int(match[1])
    return term.strip('"'), None
