"""Keys: ``Unique`` and its checks, ``Sequence``, ``idempotency_key``, and the making of the keys of a registration.

A *key* is unique in its queue for as long as its scope says; ``conflicts`` settles a second registration. An
*idempotency key* is unique for as long as results are kept, which may be forever: see ``idempotency``. Pure: no
database.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Literal

from django_pgjobs.states import BUILT_IN, KeyScope
from django_pgjobs.values.key_template import KeyOption, Template
from django_pgjobs.values.setting_rules import MOST_SECONDS, InvalidOption, abridged

KEY_LIMIT = 200
DESCRIPTION_LIMIT = 200
"""Characters of a description that a row keeps."""

UntilOption = Literal["started", "finished"]
ConflictOption = Literal["existing", "replace", "postpone", "raise"]


class OnConflict(StrEnum):
    """Policy of a registration whose key is taken."""

    EXISTING = "existing"
    REPLACE = "replace"
    POSTPONE = "postpone"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class Unique:
    """A key, which no two unfinished jobs of a queue have.

    ``key``: in ``@job`` a format string of the job's arguments, in ``using`` a text; or a callable of the arguments,
    which returns None for no key. ``until``: the key is free again when the job has *finished*, the default, or
    *started*, the default of ``"postpone"``. ``window`` (seconds or a ``timedelta``), in place of that: one job per key
    in each window. Windows are aligned, by the database's clock: one of 3600 begins at every full hour UTC.
    ``on_conflict``: the policy of a registration whose key is taken: ``"existing"`` (the default), ``"replace"``,
    ``"postpone"`` or ``"raise"``. In ``using`` everything that is left out stays as declared. Raises ``ValueError``.
    """

    key: KeyOption | None = None
    until: UntilOption | None = None
    on_conflict: ConflictOption | None = None
    window: float | timedelta | None = None

    def __post_init__(self) -> None:
        if self.key is None and self.until is None and self.on_conflict is None and self.window is None:
            raise InvalidOption("Unique needs a key, such as Unique('report:{user_id}')")
        check_key("key", self.key)
        self.fields()

    def fields(self) -> dict[str, object]:
        """Return the fields of a plan that it gives, but for the key. Raises ``InvalidOption``."""
        found: dict[str, object] = {}
        if self.on_conflict is not None:
            found["on_conflict"] = _conflict_of(self.on_conflict)
        if self.until is not None and self.window is not None:
            raise InvalidOption("Unique takes until or window, not both")
        if self.until is not None:
            found["key_scope"] = _until(self.until)
        if self.window is not None:
            found["key_scope"] = _window_seconds(self.window)
        return found


def _until(value: object) -> KeyScope:
    if value not in ("started", "finished"):
        raise InvalidOption(f"until must be 'started' or 'finished', not {value!r}")
    return KeyScope(f"until_{value}")


def _window_seconds(value: object) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 1 <= number <= MOST_SECONDS:
        raise InvalidOption(f"window must be 1 to {MOST_SECONDS:.0f} seconds or a timedelta, not {value!r}")
    return float(number)


def _conflict_of(value: object) -> OnConflict:
    try:
        return OnConflict(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidOption(
            f"on_conflict must be 'existing', 'replace', 'postpone' or 'raise', not {value!r}"
        ) from None


Scope = KeyScope | float
"""Until when a job has its key alone, or the seconds of a window."""


def check_unique(value: object) -> dict[str, object]:
    """Return the fields of a plan that ``using(unique=…)`` sets. Raises ``InvalidOption``."""
    if not isinstance(value, Unique):
        return {"key": check_key("unique", value)}
    key = {} if value.key is None else {"key": check_key("key", value.key)}
    return {**key, **value.fields()}


def declared_unique(value: object) -> dict[str, object]:
    """Return the fields of a plan that ``@job(unique=…)`` declares. Raises ``InvalidOption``."""
    if not isinstance(value, Unique):
        return {"key": declared_key("unique", value)}
    if value.key is None:
        raise InvalidOption("unique=Unique(…) of @job needs a key, such as Unique('report:{user_id}')")
    return {"key": declared_key("key", value.key), **value.fields()}


def scope_of(declared: Scope | None, on_conflict: OnConflict) -> Scope:
    """Return the scope of a key, ``declared`` or by default. Raises ``InvalidOption`` if it cannot be postponed.

    A job to postpone frees its key when it starts, so that a call that comes while it runs is a job of its own.
    """
    if declared is None:
        return KeyScope.UNTIL_STARTED if on_conflict == OnConflict.POSTPONE else KeyScope.UNTIL_FINISHED
    if isinstance(declared, float) and on_conflict == OnConflict.POSTPONE:
        raise InvalidOption(
            "on_conflict='postpone' and a window exclude each other: the job could be moved out of the window; write "
            "until='started'"
        )
    return declared


def check_key(option: str, value: object) -> KeyOption | None:
    """Return a key, or a callable that makes one from the job's arguments, or None. Raises ``InvalidOption``."""
    if value is None:
        return None
    if isinstance(value, str):
        return check_text(option, value)
    if not callable(value) or isinstance(value, type):
        raise InvalidOption(f"{option} must be a text, or a callable (the job's arguments) → text, not {value!r}")
    if inspect.iscoroutinefunction(value):
        raise InvalidOption(f"{option} must not be an async function: registering calls it")
    return value


def check_text(option: str, value: str) -> str:
    """Return a key that can be stored and shown; a member of a text enumeration counts as its value."""
    text = value if type(value) is str else str.__str__(value)
    if not 1 <= len(text) <= KEY_LIMIT or not text.isprintable():
        raise InvalidOption(f"{option} must be 1 to {KEY_LIMIT} printable characters, not {abridged(text)}")
    if option == "key" and text.startswith(BUILT_IN):
        raise InvalidOption(f"key must not begin with {BUILT_IN!r}: such keys are for this package: {abridged(text)}")
    return text


@cache
def _match(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern).fullmatch


def check_pattern(key: str, pattern: str) -> str:
    """Return ``key`` if ``BOUNDS['key_pattern']`` matches all of it. Raises ``InvalidOption``."""
    if not _match(pattern)(key):
        raise InvalidOption(f"key must match BOUNDS['key_pattern'] {pattern!r}, not {abridged(key)}")
    return key


def declared_key(option: str, value: object) -> KeyOption | Template | None:
    """Return the key that ``@job`` declares: a callable, or a format string of the job's arguments."""
    if not isinstance(value, str):
        return check_key(option, value)
    try:
        template = Template(value)
    except ValueError as error:
        raise InvalidOption(f"{option} {error}") from None
    return template if template.names else check_text(option, template.text.format())


def check_description(value: object) -> str:
    """Return a description: printable text of at most 200 characters; empty for none. Raises ``InvalidOption``."""
    if not isinstance(value, str) or len(value) > DESCRIPTION_LIMIT:
        raise InvalidOption(
            f"description must be text of at most {DESCRIPTION_LIMIT} characters, not {abridged(value)}"
        )
    if not value.isprintable():
        raise InvalidOption(f"description must be printable, without line breaks, not {abridged(value)}")
    return str.__str__(value)


def declared_description(value: object) -> str | Template | Callable[..., str | None]:
    """Return the description that ``@job`` declares: a text, a format string of the job's arguments, or a callable."""
    if callable(value) and not isinstance(value, type):
        if inspect.iscoroutinefunction(value):
            raise InvalidOption("description must not be an async function: registering calls it")
        return value
    try:
        template = Template(check_description(value))
    except ValueError as error:
        raise InvalidOption(str(error) if isinstance(error, InvalidOption) else f"description {error}") from None
    return template if template.names else template.text.format()


def check_shown(option: str, names: Iterable[str], sensitive: frozenset[str], signature: inspect.Signature) -> None:
    """Refuse a template that writes a sensitive argument where all users who may see jobs can read it."""
    others = {name for name, parameter in signature.parameters.items() if parameter.kind is parameter.VAR_KEYWORD}
    for name in names:
        if name in sensitive or (others & sensitive and name not in signature.parameters):
            raise InvalidOption(
                f"{option} shows the sensitive argument {name!r} to all users who may see jobs; make it by a callable "
                "that returns a digest of the argument"
            )


def made(option: str, key: KeyOption | None, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """Return the key of a registration with these arguments, or None. Raises ``InvalidOption``."""
    if key is None or isinstance(key, str):
        return key
    try:
        found = key(*args, **kwargs)
    except Exception as error:
        raise InvalidOption(f"{option} cannot be made from the arguments: {type(error).__name__}: {error}") from error
    if found is None:
        return None
    if not isinstance(found, str):
        raise InvalidOption(f"{option} must return a text or None, not {found!r}")
    return check_text(option, found)


# Sequences

AbandonOption = Literal["block", "skip"]
"""Policy for those behind an abandoned job: they wait, or continue."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence: its jobs run one after the other, in the order of their registration.

    ``name``: in ``@job`` a format string of the job's arguments, in ``using`` a text; or a callable of the arguments,
    which returns None for no sequence. ``on_abandon``: after this job was abandoned the others wait until an operator
    retries it or unblocks the next (``"block"``, the default), or continue (``"skip"``). In ``using`` everything that
    is left out stays as declared. Raises ``ValueError``.
    """

    name: KeyOption | None = None
    on_abandon: AbandonOption | None = None

    def __post_init__(self) -> None:
        if self.name is None and self.on_abandon is None:
            raise InvalidOption("Sequence needs a name, such as Sequence('customer:{customer_id}')")
        check_key("name", self.name)
        if self.on_abandon not in (None, "block", "skip"):
            raise InvalidOption(f"on_abandon must be 'block' or 'skip', not {self.on_abandon!r}")

    def fields(self) -> dict[str, object]:
        """Return the fields of a plan that it gives, but for the name."""
        return {} if self.on_abandon is None else {"yields": self.on_abandon == "skip"}


def check_sequence(value: object) -> dict[str, object]:
    """Return the fields of a plan that ``using(sequence=…)`` sets. Raises ``InvalidOption``."""
    if value is None:
        return {"sequence": None, "yields": None}
    if not isinstance(value, Sequence):
        return {"sequence": check_key("sequence", value)}
    return ({} if value.name is None else {"sequence": check_key("name", value.name)}) | value.fields()


def declared_sequence(value: object) -> dict[str, object]:
    """Return the fields of a plan that ``@job(sequence=…)`` declares. Raises ``InvalidOption``."""
    if not isinstance(value, Sequence):
        return {"sequence": declared_key("sequence", value)}
    if value.name is None:
        raise InvalidOption("sequence=Sequence(…) of @job needs a name, such as Sequence('customer:{customer_id}')")
    return {"sequence": declared_key("sequence", value.name)} | value.fields()
