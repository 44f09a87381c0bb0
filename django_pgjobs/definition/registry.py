"""The names that this process can run: name or alias → job definition, and the cron entries that its code declares.

``@job`` fills it as modules are imported. Process-wide: adding takes a lock, reading is one dictionary look-up. The
second of two jobs with one name is refused, since a worker could only guess which one a row means.

A name that no import has declared may still be one of the project's: *resolvers* find it, by importing its module.
``find`` and ``get`` never ask them, ``resolve`` does. The process of a supervisor asks only until its threads start
(``without_resolvers``): code of the project that hangs or crashes at import must not take its leases along.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.signals import setting_changed

from django_pgjobs.exceptions import INTERRUPTS, InvalidJob, UnknownJob
from django_pgjobs.logs import log
from django_pgjobs.states import BUILT_IN

if TYPE_CHECKING:
    from django_pgjobs.definition.cron_declaration import CronDeclaration
    from django_pgjobs.definition.policy import JobPolicy

Resolver = Callable[[str], "JobPolicy | None"]
"""Takes a dotted path; returns the definition there, or None if that is not its business. May import and raise."""

LONGEST_PATH = 200
"""Characters of the longest name that resolvers see: names are texts of rows, and the writers of rows choose them."""

MOST_MISSES = 1000
"""Number of names remembered that cannot be resolved."""


class Registry:
    """Names and aliases of job definitions, and names of cron entries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, JobPolicy] = {}
        self._crons: dict[str, CronDeclaration] = {}
        self._resolvers: tuple[Resolver, ...] = ()
        self._discoveries: tuple[Callable[[], None], ...] = ()
        self._asks = True
        self._found: frozenset[str] = frozenset()  # names that only resolvers have made known
        self._learned: dict[str, frozenset[str]] = {}
        self._misses: dict[str, str] = {}  # name → why it could not be imported, empty if no resolver knew it
        self.late: frozenset[str] = frozenset()
        """Names of definitions that were declared when Django was ready, by a later import. See ``discovery``."""
        self.late_crons: frozenset[str] = frozenset()
        """Names of cron entries outside of ``@job``, likewise."""
        self.judged: frozenset[str] = frozenset()
        """Those of ``late`` that were registered: whether workers find them was asked then, and is asked once."""
        self.is_isolated = False
        """True if a test declares jobs for itself only, so no worker has to find them."""

    def add(self, definition: JobPolicy) -> None:
        """Make ``definition`` known by its name and aliases.

        The same function again, after a reload of its module, replaces its former definition. Raises ``InvalidJob``
        naming both places if another function has the name; then nothing is added.
        """
        with self._lock:
            for name in (definition.name, *definition.aliases):
                known = self._by_name.get(name)
                if known is not None and not _same_function(known, definition):
                    raise _taken(name, known, definition)
            if self._is_late and definition.name not in self._by_name:  # a reloaded module is not late
                self.late |= {definition.name}
            kept = {n: d for n, d in self._by_name.items() if d.name != definition.name}
            self._by_name = kept | dict.fromkeys((definition.name, *definition.aliases), definition)
            self._found -= {definition.name, *definition.aliases}
            # A reloaded module declares its entries again, and maybe fewer of them.
            self._crons = {n: entry for n, entry in self._crons.items() if entry.decorates != definition.name}

    def add_cron(self, entry: CronDeclaration) -> None:
        """Make a cron entry known by its name.

        Raises ``InvalidJob`` naming both places if another entry has the name: several entries of one job need names.
        """
        with self._lock:
            known = self._crons.get(entry.name)
            if known is not None and known.location != entry.location:
                raise InvalidJob(
                    f"{entry.location}: the name {entry.name!r} is taken by the cron entry at {known.location}; "
                    "give one of them another name="
                )
            if self._is_late and known is None and not entry.decorates:
                self.late_crons |= {entry.name}
            self._crons = self._crons | {entry.name: entry}

    @property
    def _is_late(self) -> bool:
        return apps.ready and not self.is_isolated

    def crons(self) -> list[CronDeclaration]:
        """Return every cron entry that this process declares, sorted by name."""
        return [entry for _, entry in sorted(self._crons.items())]

    def find(self, name: str) -> JobPolicy | None:
        """Return the definition of this name or alias, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> JobPolicy:
        """Return the definition of this name or alias. Raises ``UnknownJob``."""
        definition = self._by_name.get(name)
        if definition is None:
            close = get_close_matches(name, self.names(), n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise UnknownJob(f"No job named {name!r} is known to this process{hint}.")
        return definition

    # Names that no import has declared yet

    def add_discovery(self, discovery: Callable[[], None]) -> None:
        """Call ``discovery`` when the app gets ready, to import jobs that stand elsewhere. Repeatable."""
        with self._lock:
            self._discoveries = (*(known for known in self._discoveries if known is not discovery), discovery)

    def discover(self) -> None:
        """Call what ``add_discovery`` was given. Errors propagate."""
        for discovery in self._discoveries:
            discovery()

    def add_resolver(self, resolver: Resolver) -> None:
        """Ask ``resolver``, after those added before, for names that are not known. Repeatable; forgets misses.

        It gets only dotted paths of at most ``LONGEST_PATH`` characters. Several threads may call it at once, also for
        one name; the definition added first is kept. An exception that it raises becomes the reason that the name is
        unknown.
        """
        with self._lock:
            self._resolvers = (*(known for known in self._resolvers if known is not resolver), resolver)
            self._misses = {}

    def resolve(self, name: str) -> JobPolicy:
        """Return the definition of this name or alias; if it is not known, of the first resolver that finds it.

        May import code of the project, and block as long as that takes, except within ``without_resolvers``. What is
        found is known from then on, also by ``find``. What is not found, and why, is remembered until
        ``forget_misses``. Raises ``UnknownJob``, whose text says why the import failed.
        """
        definition, reason = self._by_name.get(name), ""
        if definition is None:
            definition, reason = self._ask(name)
        if definition is not None:
            return definition
        if reason:
            raise UnknownJob(f"No job named {name!r} is known to this process: {reason.rstrip('.')}.")
        return self.get(name)

    def resolved(self, name: str) -> JobPolicy | None:
        """Return what ``resolve`` does, but None for a name that stays unknown, which costs little when asked again."""
        definition = self._by_name.get(name)
        return self._ask(name)[0] if definition is None else definition

    def why_unknown(self, name: str) -> str:
        """Return why the last attempt to import this name failed; empty if it did not, or the name was never looked
        up."""
        return self._misses.get(name, "")

    @property
    def may_find_more(self) -> bool:
        """True if ``resolve`` may find names that ``names`` does not have yet."""
        return self._asks and bool(self._resolvers)

    def forget_misses(self) -> None:
        """Ask the resolvers again for names that they did not find. Repeatable."""
        with self._lock:
            self._misses = {}

    def forget_found(self) -> None:
        """Forget all that resolvers found or did not find, and every definition of another front, to find it again."""
        with self._lock:
            dropped = {n for n, d in self._by_name.items() if d._front or n in self._found}
            self._by_name = {n: d for n, d in self._by_name.items() if n not in dropped}
            self._crons = {n: entry for n, entry in self._crons.items() if entry.decorates not in dropped}
            self._found, self._misses = frozenset(), {}

    @contextmanager
    def without_resolvers(self) -> Iterator[None]:
        """Within the block, ask no resolver, in any thread: for a process that must not import code any more."""
        before, self._asks = self._asks, False
        try:
            yield
        finally:
            self._asks = before

    def learn(self, name: str, traits: Iterable[str]) -> None:
        """Note the ``traits`` of a job that only an executor has found: this process runs no import for it."""
        with self._lock:
            self._learned = self._learned | {name: frozenset(traits)}

    def learned(self, name: str) -> frozenset[str] | None:
        """Return the traits of a job that only executors know, None if they have said nothing of it."""
        return self._learned.get(name)

    def learned_with(self, trait: str) -> set[str]:
        """Return the names of jobs that only executors know and that have this trait."""
        return {name for name, traits in self._learned.items() if trait in traits}

    def _ask(self, name: str) -> tuple[JobPolicy | None, str]:
        """Return what the resolvers find, and else why not, empty if none of them knows the name."""
        if not self.may_find_more or not _is_path(name):
            return None, ""
        if (reason := self._misses.get(name)) is not None:
            return None, reason
        definition, reason = self._asked(name)
        if definition is None:
            self._remember(name, reason)
        return definition, reason

    def _asked(self, name: str) -> tuple[JobPolicy | None, str]:
        """Ask the resolvers now, also for what they have missed before.

        Without a lock: a thread that imports a module may ask for a name in it, while another thread, which asked for
        that name first, waits for the module. The import system lets only one of them run the module.
        """
        reason = ""
        for resolver in self._resolvers:
            found: JobPolicy | None = None
            try:
                if (found := resolver(name)) is not None:
                    return self._adopted(name, found), ""
            except (KeyboardInterrupt, *INTERRUPTS):
                raise
            except BaseException as error:  # modules may raise anything at import, also SystemExit
                reason = reason or _reason_of(name, error)
            if (known := self._by_name.get(name)) is not None:  # the import itself has declared it
                return known, ""
        return None, reason

    def _adopted(self, name: str, found: JobPolicy) -> JobPolicy:
        """Make ``found`` known, by the name that was asked for, too, and return it; or that which is known already.

        Never replaces one: two objects may wrap one function, and what a module declares comes first. Raises
        ``InvalidJob`` if another function has one of its names.
        """
        with self._lock:
            if (known := self._by_name.get(name)) is not None:
                return known
            known = self._by_name.get(found.name)
            if known is not None and not _same_function(known, found):
                raise _taken(found.name, known, found)
            definition = known or found
            wanted = {name} if known is not None else {name, found.name, *found.aliases}
            for each in wanted:
                if (other := self._by_name.get(each)) is not None:
                    raise _taken(each, other, found)
            self._by_name = self._by_name | dict.fromkeys(wanted, definition)
            self._found |= wanted
            self._misses = {n: why for n, why in self._misses.items() if n not in wanted}
            return definition

    def _remember(self, name: str, reason: str) -> None:
        if _is_being_imported(name):
            return  # this thread, or another, is in the middle of the module: its end may define the name
        with self._lock:
            kept = self._misses if len(self._misses) < MOST_MISSES else {}
            self._misses = kept | {name: reason}

    # All of them

    def names(self) -> list[str]:
        """Return all names and aliases, sorted, without those of this package's own jobs."""
        return sorted(name for name in self._by_name if not name.startswith(BUILT_IN))

    def definitions(self) -> list[JobPolicy]:
        """Return every definition of the project once, sorted by name."""
        return [self._by_name[name] for name in self.names() if name == self._by_name[name].name]

    def fingerprints(self) -> dict[str, str]:
        """Return name → fingerprint of the code that this process knows, aliases included."""
        return {name: definition._fingerprint for name, definition in self._by_name.items()}

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within the block, know only what the block declares; restore everything afterwards. For tests.

        Resolvers may still be asked; what they find within the block is forgotten with it. A resolver of this package
        that the block was the first to import stays: nothing would import it again.
        """
        with self._lock:
            before = dict(vars(self))
            ours = {name: definition for name, definition in self._by_name.items() if name.startswith(BUILT_IN)}
            self._by_name, self._crons, self.is_isolated = ours, {}, True
            self._found, self._misses, self._learned = frozenset(), {}, {}
            self.late, self.late_crons, self.judged = frozenset(), frozenset(), frozenset()
        try:
            yield
        finally:
            with self._lock:
                lasting = [each for each in self._resolvers if _is_of_this_package(each)]
                vars(self).update(before)
                self._resolvers += tuple(each for each in lasting if each not in self._resolvers)


def _is_of_this_package(resolver: Resolver) -> bool:
    return str(getattr(resolver, "__module__", "")).startswith("django_pgjobs.")


def _same_function(one: JobPolicy, other: JobPolicy) -> bool:
    return (one.func.__module__, one.func.__qualname__) == (other.func.__module__, other.func.__qualname__)


def _taken(name: str, known: JobPolicy, definition: JobPolicy) -> InvalidJob:
    return InvalidJob(
        f"{definition._location}: the job name {name!r} is taken by {known._location}; give one of them another name="
    )


def _is_path(name: str) -> bool:
    """Return whether a name may be the path of something in a module of the project."""
    if len(name) > LONGEST_PATH or "." not in name or name.startswith(BUILT_IN):
        return False
    return all(part.isidentifier() for part in name.split("."))


def _is_being_imported(name: str) -> bool:
    module = sys.modules.get(name.rpartition(".")[0])
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _reason_of(name: str, error: BaseException) -> str:
    """Log why a name could not be resolved, once for each process that asks, and return it as text."""
    from django_pgjobs.serialization.failures import kind_of, text_of  # here for start-up time

    level = logging.INFO if isinstance(error, ImportError) else logging.WARNING
    words = f"{kind_of(error)}: {text_of(error)}"
    log.log(level, "job cannot be imported name=%s: %s", name, words, exc_info=error)
    return words


registry = Registry()


def _reset(*, setting: str, **_: object) -> None:
    if setting == "TASKS":
        registry.forget_found()
    elif setting == "PGJOBS":
        registry.forget_misses()


setting_changed.connect(_reset, dispatch_uid="django_pgjobs.registry")
