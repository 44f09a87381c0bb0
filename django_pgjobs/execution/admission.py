"""Admission of jobs that limits hold: which limits apply, where the scan of the keys continues, when to scan again.

The worker's admitter and ``runjobs --inline`` use it. It applies the limits of the code that runs here, unless an
operator has set others: the statement that admits reads those. It leaves jobs with unknown names to workers that know
them. Losing its memory does no harm: each turn counts the admitted jobs in the
database again, one transaction at a time (ADR-0013).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from django_pgjobs import clock
from django_pgjobs.conf import Conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import admitting, limiting
from django_pgjobs.store.admitting import Admitted, Bounds, Lane, StartRate, Terms
from django_pgjobs.store.database import Database, Transacting
from django_pgjobs.store.pausing import LimitInForce
from django_pgjobs.values.by_queue import EVERY_OTHER
from django_pgjobs.values.limit import Limit

LANES = 500
"""Keys, each at its priorities, that one turn scans at most: with a million keys a turn costs no more."""

BATCH = 500
LOOKAHEAD = 1000
"""The most jobs of a queue and priority to admit before workers claim them: workers could not use more."""

GROUPS = 1000
"""Groups (queue and name) that one turn scans at most; the next turn continues after them."""

FIRST = "", ""

Rated = frozenset[tuple[str, str]]
"""Kind and name of each rate that an operator has set."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one turn.

    ``pairs``: the queues and priorities of the ``jobs`` it admitted. ``again``: there may be more to admit at once.
    ``busy``: another process was admitting. ``due``: a due job is still held. ``seconds``: until the next held job is
    due, among those scanned. ``since``: when the scan began that found all this.
    """

    jobs: int = 0
    pairs: frozenset[tuple[str, int]] = frozenset()
    again: bool = False
    busy: bool = False
    due: bool = False
    seconds: float | None = None
    blocked: bool = False
    since: float = field(default=0.0, compare=False)


class Scanned(NamedTuple):
    """The findings of a scan that began at ``since``: whether a held job is ``due``, and when the next one will be."""

    since: float
    due: bool = False
    next: float = math.inf

    def joined(self, other: Scanned) -> Scanned:
        """Return the findings of both scans together."""
        return Scanned(min(self.since, other.since), self.due or other.due, min(self.next, other.next))


@dataclass(slots=True)
class Ring:
    """The scan around a group's lanes: where it continues, the findings of the last full round and of the current."""

    after: Lane | None = None
    round: Scanned | None = None
    whole: Scanned | None = None
    again: bool = False
    """True if it is to continue soon: the round is not complete, and may still find something."""

    def begin_anew(self) -> None:
        """Discard the findings, since scanned lanes may have changed: only a new full round restores them."""
        self.round = self.whole = None

    def record(self, found: Admitted, began: float) -> Scanned:
        """Add a turn's findings; return those for all keys. Before a round is complete a job may always be due."""
        part = Scanned(began, found.due or found.closed, math.inf if found.seconds is None else began + found.seconds)
        ends = not found.cut or (found.turned and self.round is not None)
        if not found.cut:
            self.round, self.whole = None, part
        elif found.turned or self.after is None:
            # One round ended and the next began somewhere in this part, so it counts for both.
            self.whole = self.whole if self.round is None else self.round.joined(part)
            self.round = part
        elif self.round is not None:
            self.round = self.round.joined(part)
        self._continue_behind(found)
        known = self._known(began)
        self.again = known.due and not ends
        return known

    def _known(self, now: float) -> Scanned:
        if self.whole is None:
            return Scanned(-math.inf, due=True)
        known = self.whole if self.round is None else self.whole.joined(self.round)
        return known._replace(due=known.due or known.next <= now)

    def _continue_behind(self, found: Admitted) -> None:
        """Continue after the last lane that jobs were admitted from, or else after the last lane scanned.

        If each turn continued after the last lane scanned, the lanes between the two would never get a turn.
        """
        if found.last_key is not None and found.last_priority is not None:
            self.after = found.last_key, found.last_priority
        elif found.cut and found.scanned_key is not None and found.scanned_priority is not None:
            self.after = found.scanned_key, found.scanned_priority


@dataclass(slots=True)
class AdmissionScan:
    """Admits jobs of the queues that ``serves`` accepts; remembers only after which group and lane to continue."""

    serves: Callable[[str], bool]
    conf: Conf
    rings: dict[tuple[str, str], Ring] = field(default_factory=dict)
    behind: tuple[str, str] = FIRST
    seen: Scanned | None = None
    unknown: set[str] = field(default_factory=set)
    """Names of held jobs that this code does not know, so not their limits either."""

    overrides: frozenset[LimitInForce] = frozenset()
    """Limits that operators have set, as far as this process knows: whether to look, never which numbers apply."""

    rates: list[StartRate] = field(init=False)
    """The rates that this code or an operator sets. Each turn dates their starts, even if no job is held."""

    def __post_init__(self) -> None:
        self._find_rates()

    def _find_rates(self) -> None:
        rated = frozenset((each.kind, each.name) for each in self.overrides if each.rate is not None)
        self.rates = [*_rates_of_queues(self.conf, rated), *_rates_of_jobs(rated)]

    def learn(self, overrides: frozenset[LimitInForce]) -> bool:
        """Learn which limits operators have set; return whether that is new."""
        changed, self.overrides = overrides != self.overrides, overrides
        if changed:
            self._find_rates()
        return changed

    def declares(self) -> bool:
        """Return whether this code or an operator sets any limit."""
        if self.overrides:
            return True
        return bool(self.conf.queue_limits) or any(definition.limits for definition in registry.definitions())

    def list_groups(self, db: Database) -> list[tuple[str, str]]:
        """Return the groups with held jobs that this worker could admit."""
        groups = admitting.list_limited(db, after=self.behind, limit=GROUPS)
        self.behind = FIRST if len(groups) < GROUPS else groups[-1]
        served = [(queue, name) for queue, name in groups if self.serves(queue)]
        for queue, name in served:
            if registry.find(name) is None and name not in self.unknown and len(self.unknown) < GROUPS:
                self.unknown.add(name)
                log.warning(
                    "limited jobs wait for a worker that knows their name when it starts queue=%s name=%s: import its "
                    "module at the start, as those named tasks are, or restart the workers",
                    queue, one_line(name),
                )  # fmt: skip
        return [(queue, name) for queue, name in served if registry.find(name) is not None]

    def begin_anew(self) -> None:
        """Distrust earlier findings, since a job was registered or has ended."""
        for ring in self.rings.values():
            ring.begin_anew()
        self.seen = None if self.seen is None else self.seen._replace(due=True)

    def turn(self, db: Transacting) -> Turn:
        """Admit as many jobs as there is room for now. Repeatable, by any number of workers; none blocks another.

        With very many groups or lanes a turn scans some of them; only a full round shows that nothing is due.
        """
        began = clock.monotonic()
        counted = limiting.limit_running(db, registry.names(), limit=BATCH) if self.overrides else 0
        turn, seen = self._turn(db, self.list_groups(db), began)
        if counted == BATCH:
            turn = replace(turn, again=True)
        seen = seen if self.seen is None else self.seen.joined(seen)
        if self.behind != FIRST:
            self.seen = seen
            return replace(turn, again=True, due=True, blocked=True)
        self.seen = None
        seconds = None if seen.next == math.inf else seen.next - began
        return replace(turn, due=seen.due, seconds=seconds, since=seen.since)

    def _turn(self, db: Transacting, groups: list[tuple[str, str]], began: float) -> tuple[Turn, Scanned]:
        if not groups and not self.rates:
            return Turn(), Scanned(began)
        random.shuffle(groups)  # so that no name is always the first to get the room that its queue has
        admitted = admitting.admit_jobs(
            db,
            [self._terms(queue, name) for queue, name in groups],
            rates=self.rates,
            lanes=LANES,
            limit=BATCH,
            lookahead=LOOKAHEAD,
            notify=self.conf.notify,
        )
        if admitted is None:
            return Turn(busy=True, blocked=bool(groups)), Scanned(began, due=bool(groups))
        seen = Scanned(began)
        for each in admitted:
            seen = seen.joined(self._ring(each).record(each, began))
        return self._summed(admitted), seen

    def _ring(self, each: Admitted) -> Ring:
        return self.rings.setdefault((each.queue, each.name), Ring())

    def _summed(self, admitted: list[Admitted]) -> Turn:
        jobs = sum(each.jobs for each in admitted)
        return Turn(
            jobs=jobs,
            pairs=frozenset((each.queue, priority) for each in admitted for priority in each.priorities or ()),
            again=jobs > 0 or any(self._ring(each).again for each in admitted),
            blocked=bool(admitted),
        )

    def _terms(self, queue: str, name: str) -> Terms:
        definition = registry.get(name)
        return Terms(
            queue,
            name,
            definition.name,
            (definition.name, *definition.aliases),
            _bounds(self.conf.queue_limits.of(queue)),
            _bounds(definition.limits.own),
            _bounds(definition.limits.keyed),
            self.rings.get((queue, name), Ring()).after,
        )


def _bounds(limit: Limit | None) -> Bounds:
    if limit is None:
        return Bounds()
    return Bounds(limit.concurrency, limit.rate, None if limit.rate is None else limit.per)


def _rates_of_queues(conf: Conf, rated: Rated) -> Iterator[StartRate]:
    limits = conf.queue_limits.values
    if any(limit is not None and limit.rate is not None for limit in limits.values()):
        for queue, limit in limits.items():
            yield StartRate("queue", _bounds(limit).per, queue=queue)
    elif any(kind == "queue" for kind, _ in rated):
        yield StartRate("queue", None, queue=EVERY_OTHER)  # the statement reads the others


def _rates_of_jobs(rated: Rated) -> Iterator[StartRate]:
    for definition in registry.definitions():
        names = (definition.name, *definition.aliases)
        for kind, limit in (("job", definition.limits.own), ("key", definition.limits.keyed)):
            if (limit is not None and limit.rate is not None) or any((kind, name) in rated for name in names):
                for name in names:
                    per = _bounds(limit).per
                    yield StartRate(f"{kind}:{definition.name}", per, name=name, keyed=kind == "key", names=names)
