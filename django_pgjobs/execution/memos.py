"""The memos of a running job as it knows them: read once, then kept beside what is written."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob, StepLimit, UnstorableResult, WaitTimedOut
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.serialization.payload import check_has_run, decode_result, encode_payload, encode_result
from django_pgjobs.states import UNDO, FlowFlag, MemoKind
from django_pgjobs.store.database import on
from django_pgjobs.store.memos import NewMemo, StoredMemo, read_memos
from django_pgjobs.values.call_options import Undo
from django_pgjobs.values.setting_rules import MOST_BYTES

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


class Memos:
    """The memos of one attempt, by name. ``progressed``: it has remembered something."""

    def __init__(self, prepared: Prepared, using: str) -> None:
        self.prepared = prepared
        self.using = using
        self.progressed = False
        self._memos: dict[str, StoredMemo] | None = None
        self._size = 0
        self._pauses = 0
        """For how many things the job has waited, side by side, as this run began."""

    def load(self) -> None:
        """Read what the job remembers, at the first use."""
        if self._memos is None:
            self._pauses = sum(
                memo.left_seconds is not None and not memo.finished for memo in self._read_again().values()
            )

    def _read_again(self) -> dict[str, StoredMemo]:
        memos = read_memos(on(self.using), self.prepared.job.id)
        # Another task may have remembered more since.
        self._memos = {memo.name: memo for memo in memos} | {n: m for n, m in (self._memos or {}).items() if m.finished}
        self._size = sum(len(memo.result or "") for memo in self._memos.values())
        return self._memos

    def known(self, name: str, kind: MemoKind) -> StoredMemo | None:
        """Return the memo of this name; None if there is none. Raises ``InvalidJob`` for one of another kind."""
        memo = (self._memos or {}).get(name)
        if memo is not None and memo.kind != kind:
            raise InvalidJob(f"{kind}: {name!r} is the name of a {memo.kind} of this job: use another name")
        return memo

    def has_ended(self, name: str) -> bool:
        """Return whether the job remembers the end of something of this name."""
        memo = (self._memos or {}).get(name)
        return memo is not None and memo.finished

    def _encoded(self, name: str, value: object) -> str:
        conf = get_conf()
        check_awaited(name, value)
        self._check_room(name)
        bounded = self.prepared.context.name != UNDO
        try:
            text = encode_result(value, conf.bounds.result_bytes if bounded else MOST_BYTES)
        except UnstorableResult as error:
            raise UnstorableResult(f"Step {name!r}: {error} Return what can be stored, such as a key.") from error
        if bounded and self._size + len(text) > conf.bounds.steps_bytes:
            raise StepLimit(
                f"Step {name!r}: the results of all steps of a job may take {conf.bounds.steps_bytes} bytes "
                "(BOUNDS['steps_bytes']): store what is large elsewhere and return its key."
            )
        return text

    def _check_room(self, name: str) -> None:
        """Raise ``StepLimit`` if the job remembers as much as it may, and nothing under ``name``."""
        known, most = self._memos or {}, get_conf().bounds.steps
        if len(known) >= most and name not in known and self.prepared.context.name != UNDO:
            raise StepLimit(
                f"The job remembers {most} steps, sleeps and waits, the most that it may (BOUNDS['steps']): do more in "
                "one step, register a batch, or raise Snooze instead of sleeping in a loop."
            )

    def _noted(self, name: str, text: str, kind: MemoKind = MemoKind.STEP) -> Any:
        self._keep(StoredMemo(name, kind, text, True, "", 0, None, None))
        return decode_result(text)

    def _keep(self, memo: StoredMemo) -> None:
        if self._memos is not None:
            self._memos[memo.name] = memo
        self._size += len(memo.result or "")
        self.progressed = True


def new_memo(name: str, text: str, undo: str | None, began: float) -> NewMemo:
    """Return the memo of a finished step that began at ``began``."""
    flow = FlowFlag.REMEMBERS | (0 if undo is None else FlowFlag.UNDOABLE)
    return NewMemo(name, MemoKind.STEP, text, clock.monotonic() - began, int(flow), undo)


def payload_of(memo: StoredMemo) -> object:
    """Return the payload for which a job has waited. Raises ``WaitTimedOut``."""
    if memo.error:
        raise WaitTimedOut(memo.error, event=memo.event or memo.name)
    return None if memo.result is None else decode_result(memo.result)
