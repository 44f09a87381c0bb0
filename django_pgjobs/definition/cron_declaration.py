"""The protocol of cron entries: what job definitions and the registry need of one, without its class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.store.firing import DeclaredCron


@runtime_checkable
class CronDeclaration(Protocol):
    """A cron entry that code declares. ``Cron`` implements it."""

    location: str
    expression: str
    zone: str | None
    overlap: str
    each_database: bool
    """True if it is in each database that workers serve, not in one."""
    decorates: str
    """The name of the job whose ``@job(cron=…)`` contains it; empty for an entry of its own."""

    @property
    def name(self) -> str:
        """The entry's name."""
        ...

    @property
    def misfire(self) -> object:
        """The misfire policy; its text is what rows keep."""
        ...

    @property
    def call(self) -> object:
        """The call to register, None until the entry belongs to a job."""
        ...

    @property
    def database(self) -> str | None:
        """The alias that its job names, None if the router decides."""
        ...

    def declare(self, definition: Any) -> None:
        """Become an entry of ``definition``, called without arguments. Raises ``InvalidJob``."""

    def declared(self) -> DeclaredCron:
        """Return what to write to the entry's row. Raises ``InvalidJob``."""
        ...


def check_crons(value: object) -> tuple[CronDeclaration, ...]:
    """Return the entries of ``@job(cron=…)``: one or several. Raises ``InvalidOption``."""
    entries = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    for entry in entries:
        if not isinstance(entry, CronDeclaration):
            such = f"Cron({entry!r})" if isinstance(entry, str) else "Cron('@daily')"
            raise InvalidOption(f"cron must be a Cron or a list of them, such as {such}, not {entry!r}")
        if entry.call is not None:
            raise InvalidOption(
                f"cron entry {entry.name!r} has a call of its own: leave it out, or declare the entry outside @job"
            )
    return entries
