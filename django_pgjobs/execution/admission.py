"""Letting in what limits hold back: whose numbers hold, where the look at the keys goes on, and when to look again.

Used by the worker's admitter and by ``runjobs --inline``. The numbers are those of the code that runs here; jobs whose
name this code does not know are left to workers that know it. Nothing is remembered that matters: what is let in is
counted anew in the database at each turn, by one transaction at a time (ADR-0013).
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
from django_pgjobs.store import statements as store
from django_pgjobs.store.statements import Admitted, Bounds, Group, StartRate, Terms
from django_pgjobs.values.limit import Limit

GROUPS = 500
"""Keys, each at its priorities, that one turn looks at: a million of them cost it no more."""

BATCH = 500
AHEAD = 1000
"""Jobs of one queue and priority that are let in and not claimed yet, at most: more would be of no use to anybody."""

PLACES = 1000
"""Queues and names that one turn looks at, at most; the next turn looks at those behind them."""

FIRST = "", ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn came to.

    ``pairs``: the queues and priorities into which ``jobs`` were let in. ``again``: there may be more to let in at
    once. ``busy``: somebody else was at it. ``due``: a job whose time has come is held back. ``seconds``: until the
    next one's time has come, as far as was looked. ``since``: when the look began that all this is known by.
    """

    jobs: int = 0
    pairs: frozenset[tuple[str, int]] = frozenset()
    again: bool = False
    busy: bool = False
    due: bool = False
    seconds: float | None = None
    blocked: bool = False
    since: float = field(default=0.0, compare=False)


class Seen(NamedTuple):
    """What a look saw that began at ``since``: whether something is ``due``, and when the next is."""

    since: float
    due: bool = False
    next: float = math.inf

    def joined(self, other: Seen) -> Seen:
        """Return what both saw together."""
        return Seen(min(self.since, other.since), self.due or other.due, min(self.next, other.next))


@dataclass(slots=True)
class Ring:
    """The walk around the keys of a place: behind which it goes on, what the last whole round saw and the one since."""

    after: Group | None = None
    round: Seen | None = None
    whole: Seen | None = None
    again: bool = False
    """Whether to go on soon: the round is not at its end, and nothing says that it would find nothing."""

    def begin_anew(self) -> None:
        """Something may have changed where the walk has been: know nothing until it has gone all the way round."""
        self.round = self.whole = None

    def saw(self, found: Admitted, began: float) -> Seen:
        """Learn from a turn; return what is known of all the keys. Until a round is whole something may be due."""
        part = Seen(began, found.due or found.closed, math.inf if found.seconds is None else began + found.seconds)
        ends = not found.cut or (found.turned and self.round is not None)
        if not found.cut:
            self.round, self.whole = None, part
        elif found.turned or self.after is None:
            # Where in this part one round ended and the next began is not told: it counts for both.
            self.whole = self.whole if self.round is None else self.round.joined(part)
            self.round = part
        elif self.round is not None:
            self.round = self.round.joined(part)
        self._go_on_behind(found)
        known = self._known(began)
        self.again = known.due and not ends
        return known

    def _known(self, now: float) -> Seen:
        if self.whole is None:
            return Seen(-math.inf, due=True)
        known = self.whole if self.round is None else self.whole.joined(self.round)
        return known._replace(due=known.due or known.next <= now)

    def _go_on_behind(self, found: Admitted) -> None:
        """The next turn begins behind the last key that was given something, else behind the last one looked at.

        Behind the last one looked at in any case, the keys between the two would never have their turn.
        """
        if found.last_key is not None and found.last_priority is not None:
            self.after = found.last_key, found.last_priority
        elif found.cut and found.looked_key is not None and found.looked_priority is not None:
            self.after = found.looked_key, found.looked_priority


@dataclass(slots=True)
class Admission:
    """Lets jobs of the queues that ``serves`` names in; remembers only behind which place and key it looks next."""

    serves: Callable[[str], bool]
    conf: Conf
    rings: dict[tuple[str, str], Ring] = field(default_factory=dict)
    behind: tuple[str, str] = FIRST
    seen: Seen | None = None
    rates: list[StartRate] = field(init=False)
    """Of this code. What they count is dated anew at each turn, also if nothing is held back."""

    def __post_init__(self) -> None:
        self.rates = [*_rates_of_queues(self.conf), *_rates_of_jobs()]

    def declares(self) -> bool:
        """Whether this code has any limit."""
        return bool(self.conf.queue_limits) or any(definition.limits for definition in registry.definitions())

    def look(self, db: store.Database) -> list[tuple[str, str]]:
        """Return the queues and names with jobs that are held back and that this worker could let in."""
        places = store.list_limited(db, after=self.behind, limit=PLACES)
        self.behind = FIRST if len(places) < PLACES else places[-1]
        return [(queue, name) for queue, name in places if self.serves(queue) and registry.find(name) is not None]

    def begin_anew(self) -> None:
        """Something was registered or has ended: what the walks saw until now may not be so any more."""
        for ring in self.rings.values():
            ring.begin_anew()
        self.seen = None if self.seen is None else self.seen._replace(due=True)

    def turn(self, db: store.Transacting) -> Turn:
        """Let in what there is room for now. May be repeated, and by any number of workers; never blocks on another.

        Of very many places or keys a turn looks at some; whether none has a job that is due is known when all were
        looked at.
        """
        began = clock.monotonic()
        turn, seen = self._turn(db, self.look(db), began)
        seen = seen if self.seen is None else self.seen.joined(seen)
        if self.behind != FIRST:
            self.seen = seen
            return replace(turn, again=True, due=True, blocked=True)
        self.seen = None
        seconds = None if seen.next == math.inf else seen.next - began
        return replace(turn, due=seen.due, seconds=seconds, since=seen.since)

    def _turn(self, db: store.Transacting, places: list[tuple[str, str]], began: float) -> tuple[Turn, Seen]:
        if not places and not self.rates:
            return Turn(), Seen(began)
        random.shuffle(places)  # so that no name is always the first to be given what its queue has left
        admitted = store.admit_jobs(
            db,
            [self._terms(queue, name) for queue, name in places],
            rates=self.rates,
            groups=GROUPS,
            limit=BATCH,
            ahead=AHEAD,
            notify=self.conf.notify,
        )
        if admitted is None:
            return Turn(busy=True, blocked=bool(places)), Seen(began, due=bool(places))
        seen = Seen(began)
        for each in admitted:
            seen = seen.joined(self._ring(each).saw(each, began))
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


def _rates_of_queues(conf: Conf) -> Iterator[StartRate]:
    limits = conf.queue_limits.said
    if any(limit is not None and limit.rate is not None for limit in limits.values()):
        for queue, limit in limits.items():
            yield StartRate("queue", _bounds(limit).per, queue=queue)


def _rates_of_jobs() -> Iterator[StartRate]:
    for definition in registry.definitions():
        for kind, limit in (("job", definition.limits.own), ("key", definition.limits.keyed)):
            if limit is not None and limit.rate is not None:
                for name in (definition.name, *definition.aliases):
                    yield StartRate(f"{kind}:{definition.name}", limit.per, name=name, keyed=kind == "key")
