"""Letting in what limits hold back: whose numbers hold, where the look at the keys goes on, and when to look again.

Used by the worker's admitter and by ``runjobs --inline``. The numbers are those of the code that runs here; jobs whose
name this code does not know are left to workers that know it. Nothing is remembered that matters: what is let in is
counted anew in the database at each turn, by one transaction at a time (ADR-0013).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from django_pgjobs import store
from django_pgjobs.conf import Conf
from django_pgjobs.limits import Limit
from django_pgjobs.registry import registry
from django_pgjobs.store import Admitted, Bounds, Group, StartRate, Terms

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
    next one's time has come, as far as was looked.
    """

    jobs: int = 0
    pairs: frozenset[tuple[str, int]] = frozenset()
    again: bool = False
    busy: bool = False
    due: bool = False
    seconds: float | None = None
    blocked: bool = False


@dataclass(slots=True)
class Admission:
    """Lets jobs of the queues that ``serves`` names in; remembers only behind which place and key it looks next."""

    serves: Callable[[str], bool]
    conf: Conf
    after: dict[tuple[str, str], Group] = field(default_factory=dict)
    behind: tuple[str, str] = FIRST
    due: bool = False
    rates: list[StartRate] = field(init=False)
    """The limits of starts that this code has. What they count is dated anew at each turn, also if nothing is held back."""

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

    def turn(self, db: store.Transacting) -> Turn:
        """Let in what there is room for now. May be repeated, and by any number of workers; never blocks on another.

        Of very many places a turn looks at some; whether none has a job that is due is known when all were looked at.
        """
        turn = self._turn(db, self.look(db))
        self.due = self.due or turn.due
        if self.behind != FIRST:
            return replace(turn, again=True, due=True, blocked=True)
        turn, self.due = replace(turn, due=self.due), False
        return turn

    def _turn(self, db: store.Transacting, places: list[tuple[str, str]]) -> Turn:
        if not places and not self.rates:
            return Turn()
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
            return Turn(busy=True, due=bool(places), blocked=bool(places))
        for each in admitted:
            self._go_on_behind(each)
        return _summed(admitted)

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
            self.after.get((queue, name)),
        )

    def _go_on_behind(self, admitted: Admitted) -> None:
        """The next turn begins behind the last key that was given something, else behind the last one looked at.

        Behind the last one looked at in any case, the keys between the two would never have their turn.
        """
        place = admitted.queue, admitted.name
        if admitted.last_key is not None and admitted.last_priority is not None:
            self.after[place] = admitted.last_key, admitted.last_priority
        elif admitted.cut and admitted.looked_key is not None and admitted.looked_priority is not None:
            self.after[place] = admitted.looked_key, admitted.looked_priority


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


def _summed(admitted: list[Admitted]) -> Turn:
    jobs = sum(each.jobs for each in admitted)
    waits = [each.seconds for each in admitted if each.seconds is not None]
    return Turn(
        jobs=jobs,
        pairs=frozenset((each.queue, priority) for each in admitted for priority in each.priorities or ()),
        again=jobs > 0 or any(each.cut and not each.closed for each in admitted),
        due=any(each.due or each.closed or each.cut for each in admitted),
        seconds=min(waits, default=None),
        blocked=bool(admitted),
    )
