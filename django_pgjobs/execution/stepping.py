"""The call of a step, its undo, and the words about its failure."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.serialization.payload import check_has_run, encode_payload
from django_pgjobs.values.call_options import Undo

if TYPE_CHECKING:
    from django_pgjobs.execution.prepared import Prepared

OUR_FILES.add(__file__)


def call_step(func: Callable[..., Any], prepared: Prepared, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call the function of a step; a job definition that takes the context gets it."""
    if getattr(func, "takes_context", False):  # a job definition
        return func(prepared.context, *args, **kwargs)
    return func(*args, **kwargs)


def check_awaited(name: str, value: object) -> None:
    """Raise ``InvalidJob`` or ``UnstorableResult`` if the value of a step is never awaited, or never iterated over."""
    if not inspect.isawaitable(value):
        check_has_run(f"Step {name!r}", value)
        return
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidJob(
        f"Step {name!r} returned a coroutine that is never awaited: its function is async, so write "
        "await context.astep(…), without atomic=True"
    )


def undo_call(name: str, undo: Undo | None, args: Any, kwargs: Mapping[str, object]) -> str | None:
    """Return the call that undoes a step, as JSON text. Raises ``InvalidJob`` if it does not take these arguments."""
    if undo is None:
        return None
    try:
        call = undo.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidJob(f"Step {name!r}: undo: {error}") from None
    payload = encode_payload(tuple(call.args), dict(call.kwargs), get_conf().bounds.payload_bytes)
    return f'{json.dumps({"name": call.name})[:-1]}, "payload": {payload}}}'


def of_step(name: str, failure: decide.Failure) -> decide.Failure:
    """Return the failure with the name of the step in front of its message."""
    message = f"step {name}: {failure.message}"
    chain = ((failure.kind, message), *failure.chain[1:])
    return decide.Failure(failure.kind, message, chain, failure.traceback)
