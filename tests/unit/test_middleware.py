"""Middleware: shaped like Django's, wrapped around every job, built once, free when there is none."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import ModuleType
from typing import Any, cast

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed
from django.utils.decorators import async_only_middleware, sync_and_async_middleware

from django_pgjobs.context import JobContext
from django_pgjobs.middleware import (
    Registration,
    async_chain,
    capture_headers,
    chain,
    load,
    on_duty,
    registering,
)

CONTEXT = cast("JobContext", "context")
trail: list[str] = []
built: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    trail.clear()
    built.clear()


@pytest.fixture
def use(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put factories where a dotted path finds them, and configure the paths."""

    def configure(*factories: Any) -> None:
        module = ModuleType("configured_middleware")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for factory in factories:
            setattr(module, factory.__name__, factory)
        settings.PGJOBS = {"MIDDLEWARE": [f"{module.__name__}.{factory.__name__}" for factory in factories]}

    return configure


def outer(run: Any) -> Any:
    built.append("outer")

    def inner(context: Any) -> Any:
        trail.append("outer in")
        try:
            return run(context)
        finally:
            trail.append("outer out")

    return inner


def inner(run: Any) -> Any:
    built.append("inner")

    def layer(context: Any) -> Any:
        trail.append(f"inner {context}")
        return run(context) + 1

    return layer


@sync_and_async_middleware
def both(run: Any) -> Any:
    if iscoroutinefunction(run):
        built.append("both async")

        async def layer(context: Any) -> Any:
            trail.append("both async")
            return await run(context)

        return layer
    built.append("both sync")

    def sync_layer(context: Any) -> Any:
        trail.append("both sync")
        return run(context)

    return sync_layer


@async_only_middleware
def only_async(run: Any) -> Any:
    async def layer(context: Any) -> Any:
        trail.append("only async")
        return await run(context)

    return layer


class Counting:
    """A class as factory: one instance per process."""

    async_capable = True

    def __init__(self, run: Any) -> None:
        built.append("Counting")
        self.run = run
        self.count = 0
        if iscoroutinefunction(run):
            markcoroutinefunction(self)

    def __call__(self, context: Any) -> Any:
        self.count += 1
        trail.append(f"run {self.count}")
        return self.run(context)


def unused(run: Any) -> Any:
    raise MiddlewareNotUsed


def forgot_to_return(run: Any) -> Any:
    return None


@sync_and_async_middleware
def wrong_colour(run: Any) -> Any:
    return lambda context: None


def body(context: Any) -> int:
    trail.append("body")
    return 1


async def async_body(context: Any) -> int:
    trail.append("body")
    await asyncio.sleep(0)
    return 1


def test_without_middleware_run_is_returned_itself(settings: Any) -> None:
    settings.PGJOBS = {}
    assert chain(body) is body
    assert async_chain(async_body) is async_body
    assert capture_headers() == {}


def test_the_first_is_the_outermost(use: Any) -> None:
    use(outer, inner)
    assert chain(body)(CONTEXT) == 2
    assert trail == ["outer in", "inner context", "body", "outer out"]


def test_an_error_of_the_body_passes_through_every_layer(use: Any) -> None:
    use(outer, inner)

    def fails(context: Any) -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        chain(fails)(CONTEXT)
    assert trail == ["outer in", "inner context", "outer out"]


def test_layers_are_built_once_for_all_jobs(use: Any) -> None:
    use(Counting)
    for number in range(3):
        assert chain(lambda context, number=number: number)(CONTEXT) == number  # type: ignore[misc]
    assert built == ["Counting"]
    assert trail == ["run 1", "run 2", "run 3"]


def test_threads_that_come_first_together_build_once(use: Any) -> None:
    use(Counting)
    barrier = threading.Barrier(8)

    def first(number: int) -> Any:
        barrier.wait()
        return chain(lambda context: number)(CONTEXT)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(first, range(8))) == list(range(8))
    assert built == ["Counting"]


def test_a_job_inside_a_job_runs_its_own_body(use: Any) -> None:
    use(outer)

    def nesting(context: Any) -> Any:
        return [chain(body)(context), chain(lambda context: "second")(context)]

    assert chain(nesting)(CONTEXT) == [1, "second"]


def test_a_layer_may_run_the_body_in_a_thread_with_its_context(use: Any) -> None:
    def elsewhere(run: Any) -> Any:
        def layer(context: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(copy_context().run, run, context).result()

        return layer

    use(elsewhere)
    assert chain(body)(CONTEXT) == 1


def test_async_jobs_run_together_each_with_its_own_body(use: Any) -> None:
    use(both)

    async def main() -> list[Any]:
        async def number(value: int) -> int:
            async def run(context: Any) -> int:
                await asyncio.sleep(0)
                return value

            return cast("int", await async_chain(run)(CONTEXT))

        return await asyncio.gather(*(number(value) for value in range(20)))

    assert asyncio.run(main()) == list(range(20))
    assert built == ["both async"]


def test_a_capable_factory_gets_the_jobs_colour(use: Any) -> None:
    use(both)
    assert chain(body)(CONTEXT) == 1
    assert asyncio.run(cast("Any", async_chain(async_body)(CONTEXT))) == 1
    assert trail == ["both sync", "body", "both async", "body"]


def test_a_class_may_be_both(use: Any) -> None:
    use(Counting, both)
    assert asyncio.run(cast("Any", async_chain(async_body)(CONTEXT))) == 1
    assert chain(body)(CONTEXT) == 1
    assert trail == ["run 1", "both async", "body", "run 1", "both sync", "body"]


def test_a_sync_layer_is_adapted_around_an_async_job(use: Any) -> None:
    use(outer, both, inner)

    async def main() -> Any:
        loop = asyncio.get_running_loop()

        async def run(context: Any) -> int:
            assert asyncio.get_running_loop() is loop, "the body stays on the executor's loop"
            return await async_body(context)

        return await async_chain(run)(CONTEXT)

    assert asyncio.run(main()) == 2
    assert trail == ["outer in", "both async", "inner context", "body", "outer out"]


def test_an_async_layer_is_adapted_around_a_sync_job(use: Any) -> None:
    use(only_async, outer)
    threads: list[int] = []

    def run(context: Any) -> int:
        threads.append(threading.get_ident())
        return body(context)

    assert chain(run)(CONTEXT) == 1
    assert trail == ["only async", "outer in", "body", "outer out"]
    assert threads == [threading.get_ident()], "the body keeps its thread, and with it its connections"


def test_a_factory_may_step_aside(use: Any) -> None:
    use(unused, inner)
    assert chain(body)(CONTEXT) == 2


def test_a_factory_that_returns_nothing_is_named(use: Any) -> None:
    use(forgot_to_return)
    with pytest.raises(ImproperlyConfigured, match=r"forgot_to_return must return a callable to use instead of run"):
        chain(body)


def test_a_factory_that_returns_the_wrong_colour_is_named(use: Any) -> None:
    use(wrong_colour)
    with pytest.raises(ImproperlyConfigured, match=r"wrong_colour returned a sync function for an async run"):
        async_chain(async_body)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.at.all", "cannot be imported: No module named 'nowhere'"),
        ("tests.routers.missing", "does not define"),
        ("nodots", "cannot be imported"),
        ("tests.settings.STATIC_URL", "is not a factory: it cannot be called"),
    ],
)
def test_a_bad_path_is_improperly_configured(settings: Any, path: str, words: str) -> None:
    settings.PGJOBS = {"MIDDLEWARE": [path]}
    for call in (lambda: load(path), lambda: chain(body), capture_headers):
        with pytest.raises(ImproperlyConfigured) as caught:
            call()
        assert path in str(caught.value)
        assert words in str(caught.value)


def test_captures_are_merged_and_the_later_wins(use: Any) -> None:
    def one(run: Any) -> Any:
        return run

    def two(run: Any) -> Any:
        return run

    one.capture = lambda: {"tenant": 1, "trace": "a"}  # type: ignore[attr-defined]
    two.capture = lambda: {"trace": "b"}  # type: ignore[attr-defined]
    use(one, outer, two)
    assert capture_headers() == {"tenant": 1, "trace": "b"}
    assert built == [], "registering builds no layers"


def test_an_error_in_a_capture_is_raised(use: Any) -> None:
    def tenant(run: Any) -> Any:
        return run

    def no_tenant() -> Any:
        raise LookupError("no tenant")

    tenant.capture = no_tenant  # type: ignore[attr-defined]
    use(tenant)
    with pytest.raises(LookupError, match="no tenant"):
        capture_headers()


def test_a_capture_that_is_no_dict_is_named(use: Any) -> None:
    def tenant(run: Any) -> Any:
        return run

    tenant.capture = lambda: None  # type: ignore[attr-defined]
    use(tenant)
    with pytest.raises(ImproperlyConfigured, match=r"tenant\.capture\(\) must return a dict, not None"):
        capture_headers()


def test_a_change_of_the_setting_is_seen(use: Any, settings: Any) -> None:
    use(inner)
    assert chain(body)(CONTEXT) == 2
    use(inner, Counting)
    assert chain(body)(CONTEXT) == 2
    assert "run 1" in trail
    settings.PGJOBS = {}
    assert chain(body) is body


# Around registering


@contextmanager
def around(word: str) -> Iterator[None]:
    trail.append(f"{word} in")
    try:
        yield
    except BaseException as error:
        trail.append(f"{word} saw {type(error).__name__}")
        raise
    finally:
        trail.append(f"{word} out")


def seen(run: Any) -> Any:
    return run


seen.registering = lambda registration: around(f"first {registration.name}")  # type: ignore[attr-defined]
seen.duty = lambda name: around(f"first {name}")  # type: ignore[attr-defined]


def seen_too(run: Any) -> Any:
    return run


seen_too.registering = lambda registration: around(f"second {registration.queue}")  # type: ignore[attr-defined]
seen_too.duty = lambda name: around(f"second {name}")  # type: ignore[attr-defined]


def test_without_middleware_nothing_is_around_registering_and_duties(settings: Any) -> None:
    settings.PGJOBS = {}
    with registering("name", "queue") as registration, on_duty("rescue"):
        assert registration is None


def test_blocks_around_registering_are_nested_like_layers(use: Any) -> None:
    use(seen, outer, seen_too)
    with registering("shop.pack", "mail") as registration:
        assert registration == Registration("shop.pack", "mail", 0, None)
        trail.append("insert")
    assert trail == ["first shop.pack in", "second mail in", "insert", "second mail out", "first shop.pack out"]


def test_an_error_of_registering_is_seen_by_every_block_and_swallowed_by_none(use: Any) -> None:
    def swallows(run: Any) -> Any:
        return run

    swallows.registering = lambda registration: suppress(LookupError)  # type: ignore[attr-defined]
    use(seen, swallows)
    with pytest.raises(LookupError), registering("a", "b"):
        raise LookupError
    assert trail == ["first a in", "first a out"], "it was suppressed on its way, and raised all the same"


def test_an_error_in_a_block_around_registering_is_raised(use: Any) -> None:
    def refuses(run: Any) -> Any:
        return run

    def refuse(registration: Any) -> Any:
        raise LookupError("no tenant")

    refuses.registering = refuse  # type: ignore[attr-defined]
    use(seen, refuses)
    with pytest.raises(LookupError, match="no tenant"), registering("a", "b"):
        trail.append("insert")
    assert trail == ["first a in", "first a saw LookupError", "first a out"]


# Around duties


def test_blocks_around_a_duty_are_nested_and_see_its_error(use: Any) -> None:
    use(seen, seen_too)
    with pytest.raises(LookupError), on_duty("rescue"):
        raise LookupError
    assert trail == [
        "first rescue in", "second rescue in", "second rescue saw LookupError", "second rescue out",
        "first rescue saw LookupError", "first rescue out",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [LookupError, SystemExit])
@pytest.mark.parametrize("where", ["called", "in", "out"])
def test_an_error_around_a_duty_costs_one_log_line_and_no_turn(
    use: Any, caplog: pytest.LogCaptureFixture, where: str, kind: type[BaseException]
) -> None:
    def breaks(run: Any) -> Any:
        return run

    @contextmanager
    def block() -> Iterator[None]:
        if where == "in":
            raise kind("broken")
        yield
        raise kind("broken")

    def duty(name: str) -> Any:
        if where == "called":
            raise kind("broken")
        return block()

    breaks.duty = duty  # type: ignore[attr-defined]
    use(seen, breaks, seen_too)
    for turn in range(3):
        with on_duty("rescue"):
            trail.append(f"turn {turn}")
    assert trail.count("first rescue out") == trail.count("second rescue out") == 3
    assert [word for word in trail if word.startswith("turn")] == ["turn 0", "turn 1", "turn 2"]
    (line,) = caplog.messages
    assert line.startswith("middleware failed around a duty")
    assert "breaks" in line


def test_a_path_that_leads_nowhere_costs_duties_one_log_line(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.PGJOBS = {"MIDDLEWARE": ["nowhere.at.all"]}
    for _ in range(3):
        with on_duty("rescue"):
            trail.append("turn")
    assert trail == ["turn"] * 3
    assert len(caplog.messages) == 1
