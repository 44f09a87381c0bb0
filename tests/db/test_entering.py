"""In an executor, connections lead to the schema of the job, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_pgjobs.models import Job
from django_pgjobs.steering import wait
from django_pgjobs.worker.executor import cleanup, entering
from django_pgjobs.worker.executor.entering import Tenancy
from django_pgjobs.worker.executor.loop_threads import JobCalls, LoopThreads
from tests.chaos.load import unless
from tests.plugins.tenant_engine.base import Refused

HERE = Tenancy("default", "one")


@pytest.fixture
def wrapper(committed: None) -> Iterator[Any]:
    """A connection of its own, not yet open, and a schema."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA one")
    wrapper = connections.create_connection("default")
    yield wrapper
    wrapper.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA one")


def schema_of(wrapper: Any) -> str:
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        return str(cursor.fetchone()[0])


def opened(wrapper: Any) -> None:
    entering.lead(HERE)
    wrapper.connect()
    entering.opened(wrapper)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_rollback_leaves_the_path(wrapper: Any, autocommit: bool) -> None:
    """Without autocommit the path would be set in the job's own transaction, and lost with it."""
    wrapper.settings_dict = {**wrapper.settings_dict, "AUTOCOMMIT": autocommit}
    copy_context().run(opened, wrapper)
    assert schema_of(wrapper) == "one"
    wrapper.connection.rollback()
    assert schema_of(wrapper) == "one"


def test_a_connection_of_another_alias_is_led_nowhere(wrapper: Any) -> None:
    def job() -> str:
        entering.enter(Tenancy("elsewhere", "one"))
        wrapper.connect()
        entering.opened(wrapper)
        return schema_of(wrapper)

    assert copy_context().run(job) == "public"


class Executor:
    """The threads of one executor, with an alias of their own."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.thread = ThreadPoolExecutor(1)
        self.pool = ThreadPoolExecutor(1)

    def run(self, schema: str, body: Callable[[], Any], then: Callable[[], Any] = lambda: None) -> Any:
        """Have the thread run a job of a schema, or of none; return what ``body`` does, and call ``then`` after it."""

        def job() -> Any:
            cleanup.refresh()
            if schema:
                entering.lead(Tenancy(self.alias, schema))
            try:
                return body()
            finally:
                cleanup.tidy("job")
                then()

        return self.thread.submit(lambda: Context().run(job)).result()

    def in_pool(self, call: Callable[[], Any]) -> Any:
        """Call in a thread that nobody cleans up, as ``asyncio.to_thread`` does."""
        return self.pool.submit(copy_context().run, call).result()

    def path(self) -> str:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SHOW search_path")
            return str(cursor.fetchone()[0])

    def end(self) -> None:
        for each in (self.thread, self.pool):
            each.submit(cleanup.close_all).result()
            each.shutdown()


def made(alias: str, **settings: Any) -> Iterator[Executor]:
    connections.settings[alias] = {**connections["default"].settings_dict, "CONN_MAX_AGE": 60, **settings}
    connection_created.connect(cleanup._remember)
    executor = Executor(alias)
    yield executor
    executor.end()
    connection_created.disconnect(cleanup._remember)
    del connections.settings[alias]


@pytest.fixture
def plainly(committed: None) -> Iterator[Executor]:
    """By the search path."""
    yield from made("plainly")


@pytest.fixture
def engine(committed: None) -> Iterator[Executor]:
    """With an engine for tenants."""
    yield from made("engine", ENGINE="tests.plugins.tenant_engine")


@pytest.fixture(params=["plainly", "engine"])
def executor(request: pytest.FixtureRequest) -> Executor:
    found: Executor = request.getfixturevalue(request.param)
    return found


def nothing() -> None:
    """A job that sends nothing."""


@pytest.mark.parametrize("before", [nothing, None])
def test_the_schema_of_the_job_before_is_not_on_the_path(executor: Executor, before: Callable[[], Any] | None) -> None:
    """It would be read where the next has no such table."""
    bare = executor.run("", executor.path)
    for schema in ("one", "two", "two", "one"):
        executor.run(schema, before or executor.path)
        assert executor.run("two", executor.path) == f"two, {'public' if executor.alias == 'engine' else bare}"
    if executor.alias == "plainly":
        executor.run("one", nothing)
        assert executor.run("", executor.path) == bare


def test_a_pool_gives_the_connection_back_without_its_schema(committed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    unless(find_spec("psycopg_pool") is None, "psycopg_pool is not installed")
    monkeypatch.setattr(cleanup._process, "application_name", "pgjobs")
    pool = {"min_size": 1, "max_size": 1, "reset": partial(cleanup._reset_pooled, None)}
    for executor in made("pooled", CONN_MAX_AGE=0, OPTIONS={"pool": pool}):
        found = [executor.run("one", executor.path).partition(",")[0] for _ in range(3)]
        executor.thread.submit(lambda: connections["pooled"].close_pool()).result()  # type: ignore[attr-defined]
        assert found == ["one"] * 3


def test_an_engine_knows_the_schema_before_the_first_query(engine: Executor) -> None:
    def job() -> str:
        wrapper: Any = connections["engine"]
        return str(wrapper.schema_name)

    for schema in ("one", "two"):
        assert engine.run(schema, job) == schema


def test_a_job_may_choose_another_schema_before_its_first_query(engine: Executor) -> None:
    """The worker does not take it back as the connection is opened, nor when it is opened again."""

    def job() -> list[str]:
        wrapper: Any = connections["engine"]
        wrapper.set_schema("other")
        found = [engine.path()]
        wrapper.close()
        found.append(engine.path())
        wrapper.set_schema("one")
        return [*found, engine.path()]

    assert engine.run("one", job) == ["other, public", "other, public", "one, public"]
    assert engine.run("one", engine.path) == "one, public"


def test_a_wrapper_that_the_job_has_made_anew_is_told(engine: Executor) -> None:
    def job() -> str:
        connections["engine"].close()
        del connections["engine"]
        return engine.path()

    assert engine.run("one", job) == "one, public"


def test_a_thread_that_nobody_cleans_up_gets_no_connection(executor: Executor) -> None:
    """It would keep the schema of this job for the next. A try again is refused as well."""
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no connection to the schema 'one'"):
            executor.run("one", lambda: executor.in_pool(executor.path))
    assert "one" not in executor.in_pool(executor.path), "outside of a job it may have one"


def test_a_wait_of_an_async_job_has_the_schema_and_keeps_no_connection(executor: Executor) -> None:
    """Its thread is one of those that nobody cleans up."""

    def job() -> str:
        return str(executor.in_pool(lambda: wait.in_thread(lambda job, timeout: executor.path(), Job(), None)))

    for schema in ("one", "two"):
        assert executor.run(schema, job).partition(",")[0] == schema


def test_calls_of_a_job_that_cannot_be_led_reach_nothing(engine: Executor) -> None:
    """A thread beside the event loop keeps its connection; a call must not find it where it was."""
    threads = LoopThreads(1.0)

    def call(schema: str, what: Callable[[], Any]) -> Any:
        entering.enter(Tenancy("engine", schema))
        calls = JobCalls(threads, [], Tenancy("engine", schema))
        try:
            return calls.submit(partial(copy_context().run, what)).result()
        finally:
            ended = calls.end(lambda: cleanup.tidy("job"))
            assert ended is not None
            ended.result()

    assert Context().run(call, "one", engine.path) == "one, public"
    assert Context().run(call, Refused.schema, lambda: 1) == 1
    with pytest.raises(RuntimeError, match="no connection to the schema"):
        Context().run(call, Refused.schema, engine.path)
    assert Context().run(call, "two", engine.path) == "two, public"
