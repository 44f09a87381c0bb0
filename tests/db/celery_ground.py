"""One cast of Celery tasks for two apps: on one a worker of Celery's own runs them, on the other ours do.

Everything that tasks, hooks and signals notice goes into ``cast.log``, in the order in which it happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import celery
from celery import Celery, signals
from celery.exceptions import Ignore, Reject

from django_pgjobs.celery_bridge import bridges


class Refused(Exception):
    """An error of the project's own, with two arguments."""


class Plain(celery.Task):
    """A base class that derives from Celery's own, not from ``app.Task``."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        self.app.cast.log.append(("before_start", list(args), dict(kwargs), self.request.id == task_id))

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.app.cast.log.append(("on_success", retval, list(args), dict(kwargs)))

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.app.cast.log.append(("on_failure", repr(exc), list(args), "Traceback" in str(einfo)))

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.app.cast.log.append(("on_retry", repr(exc), list(args)))

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.app.cast.log.append(("after_return", status, repr(retval)))


class Called(Plain):
    """A base class with a ``__call__`` around the task."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.app.cast.log.append(("call", list(args)))
        return self.run(*args, **kwargs) * 10


def cast_of(app: Celery) -> SimpleNamespace:
    """Return the tasks of an app, with their log."""
    cast = SimpleNamespace(app=app, log=[])
    app.cast = cast
    log = cast.log

    def task(**options: Any) -> Any:
        def decorate(func: Any) -> Any:
            made = app.task(name=f"shop.{func.__name__}", shared=False, **{"base": celery.Task, **options})(func)
            setattr(cast, func.__name__, made)
            return made

        return decorate

    @task()
    def add(a: Any, b: Any = 1) -> Any:
        log.append(("add", a, b))
        return a + b

    @task()
    def same(value: Any = None) -> Any:
        return value

    @task()
    def probe() -> None:
        pass

    @task()
    def types(value: Any) -> list[str]:
        return [type(each).__name__ for each in value]

    @task()
    def total(values: list[int]) -> int:
        log.append(("total", values))
        return sum(values)

    @task()
    def unstorable() -> Any:
        return object()

    @task()
    def returns_a_call() -> Any:
        return same.apply_async((1,), task_id="returned")

    @task()
    def fails(text: str) -> None:
        raise ValueError(text)

    @task()
    def refuses() -> None:
        raise Refused("no")

    @task(throws=(ValueError,))
    def expected() -> None:
        raise ValueError("expected")

    @task(bind=True)
    def asks(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        request = self.request
        return {
            "id": request.id, "task": request.task, "args": list(request.args), "kwargs": dict(request.kwargs),
            "retries": request.retries, "directly": request.called_directly, "eager": request.is_eager,
            "key": request.delivery_info["routing_key"], "priority": request.delivery_info["priority"],
            "root": request.root_id == request.id, "parent": request.parent_id, "mine": request.get("x_mine"),
            "group": request.group, "ignore": bool(request.ignore_result), "redelivered":
            request.delivery_info["redelivered"], "callbacks": request.callbacks, "chain": request.chain,
            "limits": list(request.timelimit), "expires": request.expires, "index": request.group_index,
            "headers": request.headers,
        }  # fmt: skip

    @task(bind=True, max_retries=3, default_retry_delay=0)
    def third_time(self: Any, value: Any) -> Any:
        log.append(("third_time", value, self.request.retries))
        if self.request.retries < 2:
            raise self.retry(exc=ValueError("not yet"))
        return value

    @task(bind=True, max_retries=1)
    def never(self: Any, *, named: bool) -> None:
        log.append(("never", self.request.retries))
        try:
            raise ValueError("never")
        except ValueError as error:
            raise self.retry(exc=error if named else None, countdown=0) from None

    @task(bind=True)
    def counts(self: Any, n: int, *, by: int = 1) -> int:
        log.append(("counts", n, by, self.request.retries))
        if n >= 3:
            return n
        raise self.retry(args=(n + by,), countdown=0)

    @task(bind=True)
    def renames(self: Any, name: str = "a") -> str:
        log.append(("renames", name))
        if name == "b":
            return name
        raise self.retry(kwargs={"name": "b"}, countdown=0)

    @task(bind=True)
    def copies(self: Any, n: int) -> str:
        log.append(("copies", n, self.request.retries))
        if n == 0:
            for each in (1, 2):
                self.retry(args=(each,), countdown=0, throw=False)
        return "done"

    @task(bind=True)
    def more(self: Any) -> int:
        if self.request.retries < 5:
            raise self.retry(countdown=0, max_retries=9)
        return int(self.request.retries)

    @task(bind=True, max_retries=None)
    def endless(self: Any) -> int:
        if self.request.retries < 7:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    @task(bind=True)
    def at_eta(self: Any) -> int:
        if self.request.retries < 1:
            raise self.retry(eta=datetime.now(UTC) + timedelta(milliseconds=20))
        return int(self.request.retries)

    @task(bind=True, autoretry_for=(LookupError,), dont_autoretry_for=(IndexError,), retry_kwargs={"countdown": 0})
    def by_itself(self: Any, kind: str) -> Any:
        log.append(("by_itself", kind, self.request.retries))
        if self.request.retries < 2:
            raise {"key": KeyError, "index": IndexError, "value": ValueError}[kind]("x")
        return "in the end"

    @task(bind=True, autoretry_for=(ValueError,), max_retries=1, retry_backoff=0.01, retry_jitter=False)
    def backs_off(self: Any) -> None:
        log.append(("backs_off", self.request.retries))
        raise ValueError("always")

    @task(bind=True)
    def ignores(self: Any, state: str = "") -> None:
        if state:
            self.update_state(state=state, meta={"why": "so"})
        raise Ignore

    @task()
    def rejects(requeue: bool) -> None:
        raise Reject("no", requeue=requeue)

    @task(bind=True)
    def progresses(self: Any) -> str:
        self.update_state(state="PROGRESS", meta={"current": 1, "total": 2})
        return "done"

    @task(base=Plain)
    def hooked(value: int) -> int:
        log.append(("hooked", value))
        return value

    @task(base=Plain)
    def hooked_failure(value: int) -> None:
        raise ValueError(value)

    @task(base=Plain, bind=True, default_retry_delay=0)
    def hooked_retry(self: Any, value: int) -> int:
        if not self.request.retries:
            raise self.retry(exc=LookupError("once"))
        return value

    @task(base=Called)
    def around(value: int) -> int:
        return value

    @task()
    def noted(*args: Any, **kwargs: Any) -> Any:
        log.append(("noted", list(args), kwargs))
        return "noted"

    @task()
    def errback(request: Any, exc: BaseException, traceback: Any) -> None:
        log.append(("errback", request.task, repr(exc)))

    @task(bind=True, default_retry_delay=0)
    def revoked_at_work(self: Any, fails: bool) -> str:
        self.AsyncResult(self.request.id).revoke()
        if fails:
            raise self.retry(exc=LookupError("again"))
        return "it went on"

    @task(bind=True)
    def calls(self: Any) -> str:
        add.delay(5, 6)
        return "called"

    @task(bind=True)
    def calls_fixed(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)
        same.apply_async((2,), task_id="fixed")

    @task(bind=True, default_retry_delay=0)
    def calls_each_time(self: Any) -> None:
        noted.apply_async((self.request.retries,), task_id="each-time")
        if not self.request.retries:
            raise self.retry()

    @task(bind=True, default_retry_delay=0)
    def limited(self: Any, **others: Any) -> Any:
        if not self.request.retries:
            raise self.retry(**others)
        return list(self.request.timelimit)

    @task()
    def mended(value: int) -> int:
        if getattr(app, "broken", True):
            raise ValueError("not yet")
        return value

    @task(bind=True)
    def replaced(self: Any, n: int) -> Any:
        log.append(("replaced", n))
        return self.replace(add.s(n, 1))

    @task(bind=True)
    def breaks(self: Any) -> Any:
        return self.replace(celery.chain(fails.si("at once"), add.si(1, 1)))

    @task(bind=True)
    def chained(self: Any, failing: bool) -> Any:
        return self.replace(celery.chain(add.s(1, 1), fails.si("no") if failing else add.s(1)))

    @task(ignore_result=True)
    def forgotten() -> int:
        log.append(("forgotten",))
        return 1

    @task(bind=True)
    def lineage(self: Any, n: int) -> Any:
        log.append(("lineage", n, self.request.root_id is not None, self.request.parent_id is not None))
        return n

    return cast


@contextmanager
def alone() -> Iterator[None]:
    """Let no app be bridged at first, and those that are again at the end."""
    before = dict(bridges._bridges)
    bridges._bridges.clear()
    try:
        yield
    finally:
        bridges._bridges.clear()
        bridges._bridges.update(before)


# Programs: each makes a call, and names the result to wait for.


def _date(cast: Any) -> Any:
    return cast.types.delay([datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), Decimal("1.5"), 1.5, None, "a"])


def _error(call: Any) -> Any:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing was raised"


PROGRAMS: dict[str, Any] = {
    "arguments": lambda c: c.add.delay(1, 2),
    "named arguments": lambda c: c.add.apply_async(kwargs={"a": 1, "b": 4}),
    "arguments of both kinds": lambda c: c.add.apply_async((1,), {"b": 4}),
    "no result": lambda c: c.same.delay(),
    "a tuple becomes a list": lambda c: c.same.delay((1, 2)),
    "a nested result": lambda c: c.same.delay({"a": [1, {"b": None}], "é": "\u2028"}),
    "dates and decimals": _date,
    "a result that no JSON holds": lambda c: c.unstorable.delay(),
    "a result that is another task": lambda c: c.returns_a_call.delay(),
    "an error": lambda c: c.fails.delay("no"),
    "an error of one's own": lambda c: c.refuses.delay(),
    "an expected error": lambda c: c.expected.delay(),
    "the request": lambda c: c.asks.apply_async((1,), {"b": 2}, task_id="the-request"),
    "the request in a queue, with a priority": lambda c: c.asks.apply_async(task_id="q", queue="celery", priority=3),
    "the request with a header": lambda c: c.asks.apply_async(task_id="h", headers={"x_mine": 7}),
    "the request with headers that are false": lambda c: c.asks.apply_async(
        task_id="f", headers={"x_mine": 0, "x_theirs": ""}
    ),
    "the request with limits": lambda c: c.asks.apply_async(task_id="l", time_limit=20, soft_time_limit=9),
    "the request of the first of a group": lambda c: celery.group(
        c.asks.s().set(task_id=f"g{n}") for n in range(2)
    ).apply_async(task_id="g"),
    "the request that expires": lambda c: c.asks.apply_async(task_id="e", expires=datetime(2032, 1, 1, tzinfo=UTC)),
    "retry with the limits of the call": lambda c: c.limited.apply_async(time_limit=20, soft_time_limit=9),
    "retry with a limit of its own": lambda c: c.limited.apply_async(kwargs={"time_limit": 30}, soft_time_limit=9),
    "retry": lambda c: c.third_time.delay("x"),
    "retry until the error": lambda c: c.never.delay(named=True),
    "retry until there are none": lambda c: c.never.delay(named=False),
    "retry with other arguments": lambda c: c.counts.delay(0),
    "retry with other arguments, of both kinds": lambda c: c.counts.delay(0, by=2),
    "retry with a named argument": lambda c: c.renames.delay(),
    "retry without raising": lambda c: c.copies.delay(0),
    "retry with more retries": lambda c: c.more.delay(),
    "retry without end": lambda c: c.endless.delay(),
    "retry at an instant": lambda c: c.at_eta.delay(),
    "autoretry": lambda c: c.by_itself.delay("key"),
    "no autoretry for others": lambda c: c.by_itself.delay("value"),
    "no autoretry for exceptions to it": lambda c: c.by_itself.delay("index"),
    "autoretry that backs off": lambda c: c.backs_off.delay(),
    "ignore": lambda c: c.ignores.delay(),
    "ignore in a state of one's own": lambda c: c.ignores.delay("SHIPPED"),
    "a state of one's own": lambda c: c.progresses.delay(),
    "hooks of a success": lambda c: c.hooked.delay(3),
    "hooks of a failure": lambda c: c.hooked_failure.delay(3),
    "hooks of a retry": lambda c: c.hooked_retry.delay(3),
    "a call around the task": lambda c: c.around.delay(3),
    "link": lambda c: c.add.apply_async((1, 2), link=c.noted.s(k=1)),
    "link that takes nothing": lambda c: c.add.apply_async((1, 2), link=c.noted.si()),
    "two links": lambda c: c.add.apply_async((1, 2), link=[c.noted.s(1), c.noted.s(2)]),
    "link_error": lambda c: c.fails.apply_async(("no",), link_error=c.errback.s()),
    "link_error without a failure": lambda c: c.add.apply_async((1, 2), link_error=c.errback.s()),
    "link_error of a retried task": lambda c: c.never.apply_async(kwargs={"named": True}, link_error=c.errback.s()),
    "chain": lambda c: celery.chain(c.add.s(1, 2), c.add.s(3), c.add.s(4))(),
    "chain that begins with nothing": lambda c: celery.chain(c.add.si(1, 2), c.add.si(3, 4))(),
    "chain that fails": lambda c: celery.chain(c.fails.s("no"), c.noted.s())(),
    "chain with an errback": lambda c: celery.chain(c.add.s(1, 2), c.refuses.si()).apply_async(
        link_error=c.errback.s()
    ),
    "chain with a retry": lambda c: celery.chain(c.add.s(1, 2), c.third_time.s(), c.add.s(1))(),
    "group": lambda c: celery.group(c.add.s(n, n) for n in range(3))(),
    "group in a chain": lambda c: celery.chain(c.add.s(1, 1), celery.group(c.add.s(n) for n in range(2)))(),
    "chord": lambda c: celery.chord([c.add.s(n, n) for n in range(3)], c.total.s())(),
    "chord that fails": lambda c: celery.chord([c.add.s(1, 1), c.fails.s("no")], c.total.s())(),
    "chord in a chain": lambda c: celery.chain(celery.group(c.add.s(n, 1) for n in (1, 2)), c.total.s(), c.add.s(1))(),
    "map": lambda c: c.same.map([1, 2]).delay(),
    "starmap": lambda c: c.add.starmap([(1, 2), (3, 4)]).delay(),
    "chunks": lambda c: c.add.chunks([(n, n) for n in range(4)], 2)(),
    "a task that calls another again when it is retried": lambda c: c.calls_each_time.delay(),
    "a task that calls another": lambda c: c.calls.delay(),
    "replace": lambda c: c.replaced.delay(4),
    "replace in a chain": lambda c: celery.chain(c.replaced.s(4), c.add.s(10))(),
    "replace by a chain": lambda c: c.chained.delay(False),
    "replace by a chain that fails": lambda c: c.chained.delay(True),
    "where a chain comes from": lambda c: celery.chain(c.lineage.s(1), c.lineage.s())(),
    "a result that is not kept": lambda c: c.forgotten.delay(),
    "a call that keeps its result": lambda c: c.forgotten.apply_async(ignore_result=False),
    "a call that keeps no result": lambda c: c.add.apply_async((1, 2), ignore_result=True),
    "expired": lambda c: c.add.apply_async((1, 2), expires=datetime.now(UTC) - timedelta(hours=1)),
    "not yet expired": lambda c: c.add.apply_async((1, 2), expires=300),
    "countdown": lambda c: c.add.apply_async((1, 2), countdown=0.01),
    "an aware eta": lambda c: c.add.apply_async((1, 2), eta=datetime.now(UTC)),
    "a naive eta": lambda c: c.add.apply_async((1, 2), eta=datetime.now(UTC).replace(tzinfo=None)),
    "by name": lambda c: c.app.send_task("shop.add", (1, 2)),
    "called by hand": lambda c: c.add(1, 2),
    "applied here": lambda c: c.add.apply((1, 2)),
    "arguments that do not fit": lambda c: _error(lambda: c.add.delay()),
    "arguments that are no JSON": lambda c: _error(lambda: c.same.delay(object())),
    "a result of nobody": lambda c: c.app.AsyncResult("nobody"),
}

UNENDED = {
    "ignore", "ignore in a state of one's own", "a result of nobody", "a result that is not kept",
    "a call that keeps no result",
}  # fmt: skip
"""Programs whose result never gets ready on Celery."""

DIFFERS = {
    "ignore": ("SUCCESS", None),
    "a result that is not kept": ("SUCCESS", None),
    "a call that keeps no result": ("SUCCESS", None),
}
"""Results that Celery does not have: there is a row, which says how the job ended."""

UNLOCK = "celery.chord_unlock"

SIGNALS = ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry", "task_revoked")


@contextmanager
def heard(cast: Any) -> Iterator[None]:
    """Note the signals of tasks within the block."""

    def receiver_of(name: str) -> Any:
        def receive(sender: Any = None, **given: Any) -> None:
            if sender.app is cast.app and sender.name not in (UNLOCK, "shop.probe"):
                told = {key: repr(given[key]) for key in ("state", "result", "exception", "expired") if key in given}
                cast.log.append((name, sender.name, told))

        return receive

    receivers = {name: receiver_of(name) for name in SIGNALS}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver, weak=False)
    try:
        yield
    finally:
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
