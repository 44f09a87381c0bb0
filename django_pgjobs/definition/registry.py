"""The names that this process can run: name or alias → job definition, and the cron entries that its code declares.

``@job`` fills it as modules are imported. Process-wide: adding takes a lock, reading is one dictionary look-up. The
second of two jobs with one name is refused, since a worker could only guess which one a row means.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.states import BUILT_IN

if TYPE_CHECKING:
    from django_pgjobs.definition.cron_declaration import CronDeclaration
    from django_pgjobs.definition.policy import JobPolicy


class Registry:
    """Names and aliases of job definitions, and names of cron entries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, JobPolicy] = {}
        self._crons: dict[str, CronDeclaration] = {}
        self.is_isolated = False
        """Whether a test declares jobs for itself only, so no worker has to find them."""

    def add(self, definition: JobPolicy) -> None:
        """Make ``definition`` known by its name and aliases.

        The same function again, after a reload of its module, replaces its former definition. Raises ``InvalidJob``
        naming both places if another function has the name; then nothing is added.
        """
        with self._lock:
            for name in (definition.name, *definition.aliases):
                known = self._by_name.get(name)
                if known is not None and not _same_function(known, definition):
                    raise InvalidJob(
                        f"{definition.location}: the job name {name!r} is taken by {known.location}; "
                        "give one of them another name="
                    )
            kept = {n: d for n, d in self._by_name.items() if d.name != definition.name}
            self._by_name = kept | dict.fromkeys((definition.name, *definition.aliases), definition)
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
            self._crons = self._crons | {entry.name: entry}

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

    def names(self) -> list[str]:
        """Return all names and aliases, sorted, without those of this package's own jobs."""
        return sorted(name for name in self._by_name if not name.startswith(BUILT_IN))

    def definitions(self) -> list[JobPolicy]:
        """Return every definition of the project once, sorted by name."""
        return [self._by_name[name] for name in self.names() if name == self._by_name[name].name]

    def fingerprints(self) -> dict[str, str]:
        """Return name → fingerprint of the code that this process knows, aliases included."""
        return {name: definition.fingerprint for name, definition in self._by_name.items()}

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within the block, know only what the block declares; restore everything afterwards. For tests."""
        with self._lock:
            before = self._by_name, self._crons, self.is_isolated
            ours = {name: definition for name, definition in self._by_name.items() if name.startswith(BUILT_IN)}
            self._by_name, self._crons, self.is_isolated = ours, {}, True
        try:
            yield
        finally:
            with self._lock:
                self._by_name, self._crons, self.is_isolated = before


def _same_function(one: JobPolicy, other: JobPolicy) -> bool:
    return (one.func.__module__, one.func.__qualname__) == (other.func.__module__, other.func.__qualname__)


registry = Registry()
