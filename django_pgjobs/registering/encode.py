"""Turn calls into rows to write: payload, description, keys and headers, for one call or many.

Refuses invalid calls before anything reaches the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from django_pgjobs.definition import keys
from django_pgjobs.definition.keys import DESCRIPTION_LIMIT
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnstorableResult
from django_pgjobs.logs import log as logger
from django_pgjobs.middleware import capture_headers
from django_pgjobs.serialization.payload import encode_flat, encode_payload, encode_result, is_flat
from django_pgjobs.signals import job_registered
from django_pgjobs.states import FlowFlag, KeyScope, Rule
from django_pgjobs.store.new_jobs import NewJob, NewJobs
from django_pgjobs.values.built_in import SERVANTS
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.conf import Conf
    from django_pgjobs.definition.options import Plan
    from django_pgjobs.definition.policy import JobPolicy

ROWS_AT_ONCE = 500
"""Rows of ``register_many`` whose payloads are encoded together."""

Arguments = Mapping[str, object] | tuple[object, ...]
"""A row of ``register_many``: keyword arguments, or positional ones."""

_NONE_YET = object()

Keys = tuple[str | None, str | None]
"""The key and the idempotency key of a registration."""


class Row(NamedTuple):
    """One registration to make: the definition, the plan and the arguments.

    ``headers``: what is stored in ``Job.headers`` over what middleware captures. The mapping must not change until the
    job is registered: ``register_all`` encodes one that many rows share once.
    """

    definition: JobPolicy
    plan: Plan
    args: tuple[object, ...]
    kwargs: dict[str, object]
    headers: Mapping[str, object] | None = None


def row_of(definition: JobPolicy, plan: Plan, number: int, row: Arguments) -> Row:
    """Return the row of ``register_many`` at this position. Raises what registering it alone raises, naming the row."""
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = {}
    if isinstance(row, tuple):
        args = row
    elif isinstance(row, Mapping):
        kwargs = dict(row)
    else:
        raise InvalidJob(f"row {number}: must be a mapping of keyword arguments or a tuple, not {row!r}")
    try:
        definition._fits(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"row {number}: {error}") from None
    return Row(definition, plan, args, kwargs)


_arguments = itemgetter(slice(Row._fields.index("args"), Row._fields.index("kwargs") + 1))
"""Returns the arguments of a row."""


def new_job(row: Row, headers: str | None, payload: str | None = None, keys: Keys | None = None) -> NewJob:
    """Return what a registration writes. Raises ``InvalidJob``.

    ``headers``: all of the job's, as JSON text; see ``headers_of``. ``payload``: the encoded arguments, if known.
    ``keys``: the same.
    """
    definition, plan, args, kwargs, _ = row
    if registry.late and not plan.bypass:
        from django_pgjobs.definition.discovery import warn_of_unfound  # here for start-up time

        warn_of_unfound(definition)
    if payload is None:
        try:
            payload = encode_payload(args, kwargs, plan.conf.bounds.payload_bytes, definition._signature)
        except InvalidJob as error:
            raise InvalidJob(f"job {definition.name!r}: {error}") from None
    if plan.description is not None:
        description = plan.description
    elif definition._describe_func is None:
        description = definition.description
    else:
        description = _described(definition, args, kwargs)
    # Positional for speed: register_many makes one for each of a million rows.
    new = NewJob(
        definition.name, payload, plan.queue, plan.priority, plan.max_attempts, plan.timeout, headers, description,
        plan.run_at, plan.delay,
    )  # fmt: skip
    if definition._is_limited or plan.conf.queue_limits.values:
        new = new._replace(limit_key=definition._limit_key(plan, args, kwargs))
    if not plan.is_special:
        return new
    if plan.has_keys:
        new = _with_keys(new, row, keys or keys_of(row))
    options = plan.rare
    if plan.tags or plan.deadline is not None or options is not None:
        new = new._replace(tags=plan.tags, deadline=plan.deadline, options=options)
    if plan.target is not None:
        new = new._replace(target_id=plan.target[0])
    if plan.after:
        rule = plan.when or Rule.SUCCEEDED
        new = new._replace(waits=True, flow=FlowFlag.GATED, needs=tuple((needed, rule) for needed in plan.after))
    if plan.sequence is not None:
        new = _in_sequence(new, row)
    if plan.expires is None:
        return new
    if isinstance(plan.expires, datetime):
        return new._replace(expires_at=plan.expires)
    return new._replace(expires_seconds=plan.expires)


def check_key_given(row: Row) -> None:
    """Refuse ``on_conflict`` where no key was given, not even None. Raises ``InvalidJob``."""
    if row.plan.lacks_key:
        raise InvalidJob(
            f"job {row.definition.name!r}: on_conflict says what to do when the key is taken, but there is no key: "
            "declare unique=… in @job, or pass a key to using"
        )


def keys_of(row: Row) -> Keys:
    """Return the key and the idempotency key of a registration. Raises ``InvalidJob``."""
    definition, plan, args, kwargs, _ = row
    try:
        key = keys.made("key", plan.key, args, kwargs)
        if key is not None:
            keys.check_pattern(key, plan.conf.bounds.key_pattern)
        if plan.idempotency_key is None:
            return key, None
        return key, keys.made("idempotency_key", plan.idempotency_key, args, kwargs)
    except InvalidOption as error:
        raise InvalidJob(f"job {definition.name!r}: {error}") from error.__cause__


def _in_sequence(new: NewJob, row: Row) -> NewJob:
    try:
        sequence = keys.made("sequence", row.plan.sequence, row.args, row.kwargs)
    except InvalidOption as error:
        raise InvalidJob(f"job {new.name!r}: {error}") from error.__cause__
    if sequence is None:
        return new
    bits = FlowFlag.NEEDED | FlowFlag.YIELDS if row.plan.yields else FlowFlag.NEEDED  # a worker settles its end
    return new._replace(sequence=sequence, flow=new.flow | bits)


def _with_keys(new: NewJob, row: Row, made: Keys) -> NewJob:
    key, idempotency_key = made
    if key is None:
        return new._replace(idempotency_key=idempotency_key)
    scope = row.plan.scope
    return new._replace(
        key=key,
        key_scope=KeyScope.WINDOW if isinstance(scope, float) else scope,
        window_seconds=scope if isinstance(scope, float) else None,
        on_conflict=row.plan.on_conflict,
        idempotency_key=idempotency_key,
    )


def headers_of(row: Row) -> str | None:
    """Return the headers of one job as JSON text, or None: what middleware captures here and, over it, the row's own.

    Of a servant of this package only the row's own. Raises ``InvalidJob``.
    """
    return _encoded_headers({} if row.definition.name in SERVANTS else capture_headers(), row)


def _encoded_headers(captured: Mapping[str, object], row: Row) -> str | None:
    headers = {**captured, **row.headers} if row.headers else captured
    if not headers:
        return None
    try:
        return encode_result(headers, row.plan.conf.bounds.payload_bytes, "mapping", "BOUNDS['payload_bytes']")
    except UnstorableResult as error:
        who = f"job {row.definition.name!r} has" if row.headers else "PGJOBS['MIDDLEWARE'] captured"
        raise InvalidJob(f"{who} headers that cannot be stored: {error}") from None


def _described(definition: JobPolicy, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """Return the job's description, cut and cleaned; an error in making it costs the description, never the job."""
    try:
        words = definition._describe_func(*args, **kwargs)  # type: ignore[misc]
        text = "" if words is None else str(words)
    except Exception:
        logger.exception("description cannot be made name=%s", definition.name)
        return ""
    text = text.replace("\0", "")
    text = text if len(text) <= DESCRIPTION_LIMIT else f"{text[: DESCRIPTION_LIMIT - 1]}…"
    return text.encode("utf-8", "replace").decode()


# Many


@dataclass(slots=True)
class NewBatch:
    """Many registrations, encoded; ``senders``: their definitions if ``job_registered`` has receivers, else empty.

    ``captured``: what middleware captures for all of them. ``special``: some may have a key, tags, a deadline or an
    expiry. ``limited``: a limit may apply to some. ``plan``: the plan of the latest row.
    """

    databases: set[str | None]
    captured: Mapping[str, object] = field(default_factory=dict)
    new: list[NewJobs] = field(default_factory=list)
    count: int = 0
    senders: list[JobPolicy] = field(default_factory=list)
    special: bool = False
    limited: bool = False
    plan: Plan | None = None
    needed: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)
    """Names, and the jobs that jobs of these names need."""
    _own: object = _NONE_YET
    _headers: str | None = None

    def keys_of(self, rows: Iterable[Row]) -> list[Keys]:
        """Return the keys of the next registrations. Raises ``InvalidJob``, naming the row."""
        made: list[Keys] = []
        try:
            made.extend(map(keys_of, rows))
        except InvalidJob as error:
            raise InvalidJob(f"row {self.count + len(made)}: {error}") from error.__cause__
        return made

    def add(self, row: Row, payloads: Sequence[str] = (), keys: Sequence[Keys] = ()) -> None:
        """Add one registration like ``row`` for each of ``payloads``, with these ``keys``, if they have some.

        Without payloads, encode ``row`` and add it alone. Raises ``InvalidJob``, naming the row.
        """
        if row.plan is not self.plan:  # most batches have one
            self._note(row)
        try:
            if row.headers is not self._own:  # so do most batches
                self._own, self._headers = row.headers, _encoded_headers(self.captured, row)
            first = new_job(row, self._headers, payloads[0] if payloads else None, keys[0] if keys else None)
        except InvalidJob as error:
            raise InvalidJob(f"row {self.count}: {error}") from None
        self.new.append(NewJobs(first, payloads or (first.payload,), *zip(*keys, strict=True)))
        self.count += len(payloads) or 1

    def _note(self, row: Row) -> None:
        self.plan = row.plan
        try:
            check_key_given(row)
        except InvalidJob as error:
            raise InvalidJob(f"row {self.count}: {error}") from None
        if row.plan.bypass:
            raise InvalidJob(f"row {self.count}: bypass=True stores nothing, and register_many only stores jobs")
        self.databases.add(row.plan.database)
        if row.plan.after_rows:
            self.needed.append((row.definition.name, row.plan.after_rows))
        self.special = self.special or row.plan.is_special
        self.limited = self.limited or row.definition._is_limited or bool(row.plan.conf.queue_limits)

    def queues(self) -> Iterator[str]:
        """Yield the queue of each job."""
        return (some.first.queue for some in self.new for _ in some.payloads)

    def database(self) -> str | None:
        """Return the one database alias that rows name, or None. Raises ``InvalidJob`` if they name several."""
        named = self.databases - {None}
        if len(named) > 1:
            raise InvalidJob(f"register_many writes to one database, not to {', '.join(sorted(map(str, named)))}")
        return next(iter(named), None)


def encode_all(rows: Iterable[Row], conf: Conf, database: str | None) -> NewBatch:
    """Encode ``rows`` into one batch; the rows may be lazy. Raises ``InvalidJob``, naming the row."""
    batch = NewBatch({database}, capture_headers())
    listened = bool(job_registered.receivers)
    for some in _together(rows):
        payloads = encode_flat(list(map(_arguments, some)), conf.bounds.payload_bytes) if len(some) > 1 else None
        alike = bool(payloads) and _are_alike(some)
        made = batch.keys_of(some) if alike and some[0].plan.has_keys else []
        if payloads and alike and len({key is None for key, _ in made}) < 2:
            batch.add(some[0], payloads, made)
        else:
            for at, row in enumerate(some):
                batch.add(row, payloads[at : at + 1] if payloads else (), made[at : at + 1])
        if listened:
            batch.senders += [row.definition for row in some]
    return batch


def _are_alike(rows: list[Row]) -> bool:
    """Return whether the stored rows of these jobs differ only in their payloads and keys."""
    definition, plan, _, _, headers = rows[0]
    made_of_arguments = (
        definition._describe_func is not None
        or definition._is_limited
        or plan.conf.queue_limits.values
        or plan.sequence is not None
    )
    return not made_of_arguments and all(row[1] is plan and row[4] is headers for row in rows)


def _together(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows to encode together, at most ``ROWS_AT_ONCE``.

    Flat rows are immutable and batched. Every other row comes alone, before the next is fetched, since callers may
    reuse lists.
    """
    some: list[Row] = []
    for row in rows:
        if is_flat(row[2], row[3]):
            some.append(row)
            if len(some) < ROWS_AT_ONCE:
                continue
            yield some
        else:
            if some:
                yield some
            yield [row]
        some = []
    if some:
        yield some
