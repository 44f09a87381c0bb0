"""``Event``: a job waits for them, and code or an operator sends them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints
from weakref import WeakSet

from django_pgjobs.durable import JOB_EVENTS, known_events
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.states import BUILT_IN
from django_pgjobs.values.asynchronous import asynchronous
from django_pgjobs.values.call_options import check_name

T = TypeVar("T")


class Event(Generic[T]):
    """A kind of event, by its ``name``: ``approval: Event[Verdict] = Event("order.approval")``.

    Jobs wait for one of them by ``context.wait_for(approval, order_id, timeout=…)``; ``approval.send(order_id,
    payload=…)`` sends it. ``T`` is the type of the payload: of an event in a module, or of ``Event[Verdict](…)``, this
    is known where the event is sent, and another payload is refused. Raises ``InvalidJob`` unless the name is a
    printable text of at most 200 characters without a colon, and neither ``job`` nor one that begins with ``pgjobs.``.
    """

    __slots__ = ("__orig_class__", "__weakref__", "module", "name")

    def __init__(self, name: str) -> None:
        self.name = check_name("the name of an event", name)
        if ":" in name:
            raise InvalidJob(f"event {name!r}: a colon divides the name from its key: write a dot")
        if name == JOB_EVENTS or name.startswith(BUILT_IN):
            raise InvalidJob(f"event {name!r}: events of that name are for single jobs or this package: choose another")
        self.module = _calling_module()
        known_events.setdefault(name, WeakSet()).add(self)

    def __repr__(self) -> str:
        return f"<Event {self.name}>"

    def name_of(self, *key: str | int) -> str:
        """Return the name of the event for ``key``, as the database stores it: ``order.approval:eu:7``.

        A colon in a part is stored as ``%3A``, and a percent sign as ``%25``. ``7`` and ``"7"`` are the same part.
        Raises ``InvalidJob``.
        """
        for part in key:
            if isinstance(part, bool) or not isinstance(part, str | int):
                raise InvalidJob(f"event {self.name!r}: a key is made of texts and numbers, not {part!r}")
        return check_name("the name of an event", ":".join([self.name, *map(_part, key)]))

    def payload_type(self) -> Any:
        """Return ``T``, from ``Event[T](…)`` or from the annotation of the module's variable; ``Any`` if neither says.

        A name that only type checkers import says nothing.
        """
        using = getattr(self, "__orig_class__", None)
        if using is None:
            module = sys.modules.get(self.module)
            names = [name for name, value in list(vars(module).items()) if value is self] if module else []
            using = _annotation(module, names[0]) if names else None
        arguments = get_args(using) if get_origin(using) is Event else ()
        return Any if not arguments or isinstance(arguments[0], TypeVar) else arguments[0]

    def typed(self, payload: object) -> T:
        """Return a payload as what it is for type checkers."""
        return cast(T, payload)

    def send(self, *key: str | int, payload: T | None = None, by: object = None, database: str | None = None) -> bool:
        """Send the event for ``key``, in the caller's transaction; return False if it was sent before.

        The first one counts: jobs that wait for it, and those that will, get its ``payload``, a value that can be
        stored as JSON. ``by``: a user or a text, for people to see. ``database``: an alias; by default your routers
        decide, else it is that of the job that runs here. Raises ``InvalidJob``. Repeatable. Waits while another
        transaction sends the same event, or steers a job that waits for it.
        """
        return send_named(self.name_of(*key), payload, by=by, database=database)

    asend = asynchronous(send)

    def withdraw(self, *key: str | int, by: object = None, reason: str = "", database: str | None = None) -> bool:
        """Take the event for ``key`` back, in the caller's transaction; return False if it was never sent or was read.

        A job reads it when its ``wait_for`` returns the payload; from then on the event counts, for all who wait for
        it. Jobs that were about to read it wait on, as long as they would have. Afterwards it can be sent again, also
        in the same transaction. ``by`` and ``reason`` go into the record of operators' actions. ``database`` as in
        ``send``. Raises ``InvalidJob``. Repeatable. Waits while another transaction sends the same event.
        """
        from django_pgjobs.registering.destination import writable_alias  # here for start-up time
        from django_pgjobs.steering.events import withdraw  # here for start-up time

        name = self.name_of(*key)
        return withdraw(writable_alias(database, event=name), name, by=by, reason=reason)

    awithdraw = asynchronous(withdraw)


def _calling_module() -> str:
    """Return the name of the module that makes an event."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "typing":  # of ``Event[T](…)``
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _annotation(module: object, name: str) -> object:
    """Return the annotation of a module's variable, or None if there is none that can be evaluated."""
    try:
        said = SimpleNamespace(__annotations__={name: module.__annotations__[name]})
        return get_type_hints(said, vars(module))[name]
    except Exception:  # any exception: an annotation is for type checkers
        return None


def _part(part: str | int) -> str:
    return str(part).replace("%", "%25").replace(":", "%3A")


def send_named(name: str, payload: object, *, by: object = None, database: str | None = None) -> bool:
    """Send an event by its stored name; see ``Event.send``."""
    from django_pgjobs.registering.destination import writable_alias  # here for start-up time
    from django_pgjobs.steering.events import send_value  # here for start-up time

    return send_value(writable_alias(database, event=name), name, payload, by=by)
