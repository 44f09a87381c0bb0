"""The record of who did what to jobs, queues and cron entries, when, how and why: one row of ``Action`` for each
steering action.

The transaction that changes the jobs writes the row, so there is no change without a record and no record of a change
that was rolled back. The job ids go beside it in parts of at most a thousand: the page of a job finds every action that
changed it, however many others that action changed. An action that changed nothing leaves no row, except one that a
job carries out: its row is there before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import Facts, facts
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import clean
from django_pgjobs.store import acting
from django_pgjobs.store.database import Database
from django_pgjobs.values.setting_rules import MOST_SECONDS

CODE, SHELL, ADMIN = "code", "shell", "admin"

REVERSIBLE = ("retry", "reschedule")
"""Actions on jobs that can be undone."""

MOST_CHARS = 1000
"""Characters of a text that a row keeps."""


@dataclass(slots=True)
class ActionOrigin:
    """Origin of actions: ``via`` code, shell or admin; ``filter_words`` names the filter that chose the jobs.

    ``recorded``: the ids of the rows written in the block.
    """

    via: str = CODE
    filter_words: str = ""
    recorded: list[int] = field(default_factory=list)
    continues: tuple[int, int] | None = None
    """An action whose row there is already, and how many parts it has."""


_origin: ContextVar[ActionOrigin | None] = ContextVar("pgjobs_origin", default=None)


@contextmanager
def recorded_as(
    via: str | None = None, filter_words: str | None = None, *, continues: tuple[int, int] | None = None
) -> Iterator[ActionOrigin]:
    """Record the actions of the block with this origin; None keeps the value from outside the block.

    ``continues``: the id of an action and how many parts it has, for one action of the block that continues it.
    """
    outer = _origin.get() or ActionOrigin()
    words = outer.filter_words if filter_words is None else filter_words
    origin = ActionOrigin(outer.via if via is None else via, words, outer.recorded, continues)
    token = _origin.set(origin)
    try:
        yield origin
    finally:
        _origin.reset(token)


@dataclass(slots=True)
class Trail:
    """One action while it runs: the first change writes its row, each further one extends it.

    ``kind``: what it changes, jobs, or a queue, job name or cron entry that ``subject`` names. ``mode``: the mode of a
    cancel, or the other database of a move.
    """

    verb: str
    by: str = ""
    reason: str = ""
    mode: str = ""
    kind: str = "jobs"
    subject: str = ""
    action_id: int | None = None
    parts: int = 0
    goes_on: bool = False

    @property
    def is_reversible(self) -> bool:
        """True if the record keeps where the jobs stood."""
        return self.verb in REVERSIBLE

    def add(self, db: Database, changed: int, job_ids: Sequence[int] = (), former: str | None = None) -> None:
        """Record that the action changed this many, within the caller's transaction; nothing for none.

        ``former``: where the jobs stood, for an undo.
        """
        if not changed:
            return
        origin = _origin.get() or ActionOrigin()
        if self.action_id is None and origin.continues is not None:
            (self.action_id, self.parts), self.goes_on = origin.continues, True
            origin.continues = (self.action_id, self.parts + 1)
        if self.action_id is None:
            self.action_id = acting.record_action(db, {**self._words(origin), "changed": changed}, job_ids, former)
            origin.recorded.append(self.action_id)
        else:
            acting.extend_action(db, self.action_id, changed, self.parts, job_ids, former)
        self.parts += 1

    def skip(self, db: Database, skipped: Mapping[str, int]) -> None:
        """Record why the action skipped jobs (reason → number); nothing if it changed no job."""
        if skipped and self.action_id is not None and not self.goes_on:
            acting.close_action(db, self.action_id, skipped)

    def _words(self, origin: ActionOrigin) -> dict[str, object]:
        words = {"by": self.by, "reason": self.reason, "mode": self.mode, "subject": self.subject}
        words["asked"] = origin.filter_words
        return {
            "verb": self.verb,
            "kind": self.kind,
            "via": origin.via,
            **{name: storable(text)[:MOST_CHARS] for name, text in words.items()},
        }


def open_action(db: Database, verb: str, by: str, reason: str, mode: str) -> int:
    """Write the row of an action that a job will carry out, and return its id."""
    trail = Trail(verb, by, reason, mode=mode)
    return acting.record_action(db, {**trail._words(_origin.get() or ActionOrigin()), "changed": 0}, ())


def signed(by: str, reason: str = "") -> Facts:
    """Return the author and the reason, as the end of a log line."""
    author = one_line(storable(by))
    return facts("by=%s: %s", author, one_line(storable(reason))) if reason else facts("by=%s", author)


def storable(words: object) -> str:
    """Return ``words`` as text that a column can store: a NUL in them fails neither the action nor its record."""
    return clean(str("" if words is None else words))


REASON_CHARS = 500
"""Maximum length of the reason for a pause."""

Until = datetime | timedelta | float | None
"""End of a pause by itself: an aware instant; seconds or a timedelta from the database's now; None for never."""


def end_of(until: Until) -> tuple[datetime | None, float | None]:
    """Return the end as (instant, None) or (None, seconds from now); both None for never. Raises ``InvalidJob``."""
    if until is None:
        return None, None
    if isinstance(until, datetime):
        if settings.USE_TZ and timezone.is_naive(until):
            raise InvalidJob(f"until must be an aware datetime, since USE_TZ is on; {until!r} has no time zone.")
        return (until if timezone.is_aware(until) else timezone.make_aware(until)), None
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    if type(seconds) not in (int, float) or not 0 < seconds <= MOST_SECONDS:
        raise InvalidJob(f"until must be an aware datetime, or a time from now of at most ten years, not {until!r}.")
    return None, float(seconds)


def reason_of(author: str, reason: object) -> str:
    """Return the reason of a pause as text, none as an empty one.

    Raises ``InvalidJob`` for an author or a reason that no column can store, and for a reason that is too long.
    """
    reason = str("" if reason is None else reason)
    for what, text in (("author", author), ("reason", reason)):
        if text != clean(text):
            raise InvalidJob(f"The {what} of a pause must not contain NUL characters or lone surrogates: {text!r}.")
    if len(reason) > REASON_CHARS:
        raise InvalidJob(f"The reason for a pause may have at most {REASON_CHARS} characters, not {len(reason)}.")
    return reason
