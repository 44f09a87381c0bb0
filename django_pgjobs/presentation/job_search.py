"""The filters and the search of a list of jobs: what they mean together, and which of them no index answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db.models import Model, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from django_pgjobs.models import Job, Memo
from django_pgjobs.models.gates import Gate
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation import filters
from django_pgjobs.presentation import reach as reaches
from django_pgjobs.presentation.filters import OPEN_BATCHES, SUSPENDED, Filter
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
    NO_ERROR,
    TERM_LIMIT,
    age,
    complaint_of,
    moment,
    taken_apart,
    too_long,
)
from django_pgjobs.states import BUILT_IN, GATHERING, LABELS, JobState, Outcome
from django_pgjobs.values.built_in import OWN_QUEUE, SERVANTS

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
    action: int | None = None
    """The number of an operator's action: list the jobs that it changed."""
    arg: tuple[str, str] | None = None
    """The name of an argument, and its value as typed."""
    others: Mapping[str, str] = field(default_factory=dict)
    """The values of the filters that have a ``condition`` of their own, by name."""
    by_ids: bool = False
    """True if the caller names the jobs by their ids, too."""
    reveal: bool = False
    """True if the searcher may see sensitive arguments: no other user finds a job by one."""
    complaint: str = field(default="", compare=False)
    """Problem of the search term, in words for people."""
    problem: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, params: Mapping[str, str], search: str, *, reveal: bool = False) -> JobSearch:
        """Read a search from a query dict (``state``, ``suspended``, ``queue``, …) and a search term."""
        searched = taken_apart(search.strip()[:TERM_LIMIT])
        words = searched.values
        given = {
            each.name: (params.get(each.name, "") if each.title else "") or words.get(each.name, "")
            for each in filters.FILTERS
        }
        problem = "\0" in "".join(given.values())
        for each in filters.FILTERS:
            if each.choices and given[each.name] and given[each.name] not in each.choices:
                problem |= each.name not in words
                given[each.name] = ""
        are_open = given["batch"] == OPEN_BATCHES
        members_of = None if are_open else parse_search(given["batch"])[1]
        problem |= bool(given["batch"]) and not are_open and members_of is None
        state, name = given["state"], given["name"]
        if not state:
            state = Outcome.ABANDONED.value if given["error"] else JobState.RUNNING if given["worker"] else ""
        if are_open:
            state, name = state or JobState.BLOCKED, name or GATHERING[0]
        text, job_id = parse_search(search)
        found = cls(
            state="" if problem else state, suspended="" if problem else given["suspended"], batch=members_of,
            are_open=are_open, queue=given["queue"], name=name, tag=given["tag"], text=text, job_id=job_id,
            problem=problem, error=given["error"], exact_error=searched.exact_error, worker=given["worker"],
            arg=searched.argument, action=_number(given["action"]),
            others={each.name: given[each.name] for each in filters.FILTERS if each.condition and given[each.name]},
            since=age(given["since"]), older=age(given["older"]),
            since_at=moment(given["since"]), older_at=moment(given["older"]),
            reveal=reveal, complaint=too_long(search.strip()) or complaint_of(searched),
        )  # fmt: skip
        return replace(found, reach=found.reaches(far=params.get("reach") == "far"))

    @property
    def words(self) -> str:
        """The filters as an operator would type them: *state ready, queue mail, "order 17"*; empty for none."""
        words = [f"{each.name} {value}" for each in filters.FILTERS if not each.worded and (value := self._value(each))]
        named = ((each.worded, self._value(each)) for each in filters.FILTERS if each.worded)
        words += [worded(value) for worded, value in named if value not in (None, "")]
        words += [f"id {self.job_id}"] if self.job_id is not None else []
        return ", ".join([*words, f'"{self.text}"'] if self.text else words)

    def _value(self, chosen: Filter) -> object:
        if chosen.condition is not None:
            return self.others.get(chosen.name)
        if chosen.name == "batch" and self.are_open:
            return OPEN_BATCHES
        value = getattr(self, chosen.name)
        return getattr(self, f"{chosen.name}_at") if chosen.kind == "age" and value is None else value

    def reaches(self, *, far: bool) -> int:
        """Return how many jobs this search examines if it is bounded."""
        if self.arg:
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
        rest = bool(self.text or self.are_open or self.arg or self.worker or self.tag_is_common)
        rest = rest or any(self.state or not each.has_index for each in filters.FILTERS if each.name in self.others)
        rest = rest or (bool(self.error) and not self.by_error)
        if self.batch is not None:
            return rest or self.is_aged or bool(self.state or self.queue or self.name or self.tag or self.suspended)
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

    def sleepers(self) -> QuerySet[Model, object]:
        """The ids of the jobs with a memo that says that they sleep, or wait, in the order of its index."""
        memos = Memo.objects.filter(kind=SUSPENDED[self.suspended], finished_at=None)
        return memos.order_by("event").values_list("job_id", flat=True)

    def members(self) -> QuerySet[Model, object]:
        """The ids of the batch's members, newest first, by its index alone."""
        return Job.objects.filter(ANY_ID, parent_id=self._batch_id).order_by("-pk").values_list("pk", flat=True)

    @property
    def _batch_id(self) -> int:
        return min(self.batch or 0, BIGGEST_ID)

    def _but_members(self) -> Q:
        found = state_condition(self.state)
        if self.are_open:
            # Not EXISTS, which PostgreSQL may answer with a hash of all gates.
            hands = Subquery(Gate.objects.filter(job_id=OuterRef("pk"), eager=False).values("hands")[:1])
            found &= Q(GreaterThan(hands, 0))
        if self.suspended:
            found &= ASLEEP if self.by_memo else ASLEEP & remembers(SUSPENDED[self.suspended])
        for column in ("queue", "name"):
            if value := getattr(self, column):
                found &= Q(**{column: value})
        found &= Q() if self.shows_servants else ~Q(name__in=sorted(SERVANTS))
        if self.tag:
            ids = Subquery(tagged(self.tag)[: reaches.FAR], template=ARRAY)
            found &= is_one_of(ids) if self.by_tag else has_tag(self.tag)
        found &= self._of_error() & self._of_worker() & self._of_action()
        for each in filters.FILTERS:
            found &= each.condition(self.others[each.name]) if each.condition and each.name in self.others else Q()
        found &= argument_condition(*self.arg, reveal=self.reveal) if self.arg else Q()
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


def parse_search(search: str) -> tuple[str, int | None]:
    """Return (text, id) of a search term: digits, with or without #, are an id unless quoted."""
    term = taken_apart(search.strip()[:TERM_LIMIT]).text
    if match := _ID.fullmatch(term):
        return "", int(match[1])
    return term.strip('"'), None
