"""The leader: the one worker that performs the duties that only one should. No job needs it for progress.

Any worker may lead. The single row of ``LeaderTerm`` names the leader, its numbered term and the term's end by the
database's clock: a lease like any other and no session lock, so it works through any pooler. Every worker tries to take
the term now and then, and succeeds when the last one has run out. The leader renews long before that, and resigns when
it leaves. It leads only while it *knows* that its term runs, counted on its own clock from before it asked: a leader
whose database is unreachable, or that was frozen, stops before another begins. Two leaders at once are still possible,
for the length of one duty, if one freezes between reading the clock and its statement. Every duty is therefore harmless
when performed twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.maintenance.turns import took_turn
from django_pgjobs.middleware import on_duty
from django_pgjobs.store import leading
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author

TERM_SECONDS = 6.0
ASK_SECONDS = 2.0
"""Interval at which a leader renews and the others try. Two renewals may be missed; a leader that dies is replaced
within TERM + ASK seconds and a tick of the loop, which is less than ten seconds."""


class Leader:
    """Takes, renews and resigns the term for this worker. A duty of every worker."""

    name = "lead"

    def __init__(self, author: Author, level: int = logging.INFO) -> None:
        self.author = author
        self.level = level
        """That of the line which says that it leads."""
        self.term: int | None = None
        self.unled_seconds: float | None = None
        """Time without a leader before this term; None if that is not known."""

        self.trusted_until = 0.0
        self.ask_at = 0.0
        self.is_vacant: Callable[[], bool] = lambda: True
        """False if it is known that another leads: then it does not try."""

    @property
    def leads(self) -> bool:
        """True if this worker leads, as far as it knows without a query."""
        return self.term is not None and clock.monotonic() < self.trusted_until

    def tick(self, db: Database) -> None:
        """Renew the term, or try to take it, if that is due."""
        now = clock.monotonic()
        if now < self.ask_at or (self.term is None and not self.is_vacant()):
            return
        self.ask_at = now + ASK_SECONDS
        with on_duty(self.name):
            self._ask(db, now)

    def _ask(self, db: Database, now: float) -> None:
        held = self.term
        if held is not None and not leading.renew_term(db, self.author, held, seconds=TERM_SECONDS):
            log.warning("worker leads no more, another has taken over term=%d", held)
            self.term = None
        if self.term is None:
            taken = leading.take_term(db, self.author, seconds=TERM_SECONDS)
            self.term, self.unled_seconds = taken or (None, None)
        took_turn(self.name, now)
        if self.term is None:
            return
        self.trusted_until = now + TERM_SECONDS
        if self.term != held:
            log.log(self.level, "worker leads now term=%d", self.term)

    def leave(self, db: Database) -> None:
        """Resign, so that another can lead at once."""
        held = self.term
        self.stand_by()
        if held is not None:
            leading.renew_term(db, self.author, held, seconds=0.0)

    def stand_by(self) -> None:
        """Lead no more, as far as this worker knows, and try again at once."""
        self.term, self.ask_at = None, 0.0
