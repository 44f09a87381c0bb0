"""Results of Celery's tasks on the bridge: those that no row keeps, and those of tasks that a failure leaves unrun."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

import celery
from celery.app.trace import trace_task
from kombu.exceptions import EncodeError

from django_pgjobs.celery_bridge import install
from django_pgjobs.models import Job
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.db.celery_ground import alone, cast_of

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["cache+memory://", None], ids=["with a result backend", "without"])
def app(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A new app with its cast, not bridged yet."""
    made = celery.Celery("results", broker="memory://", backend=request.param, set_as_current=False, fixups=[])
    cast = cast_of(made)

    @made.task(name=f"shop.spells-{uuid4()}", shared=False)  # what a log says once a minute, it says for each name
    def spells(code: int, times: int) -> str:
        cast.log.append(("spells", code, times))
        return chr(code) * times

    cast.spells = spells
    made.finalize()
    with isolated_registry(), alone():
        yield made


@pytest.fixture
def cast(app: Any) -> Any:
    """Its cast, all of it bridged."""
    install(app)
    return app.cast


@pytest.fixture
def bounded(settings: Any) -> Any:
    """A function that sets bounds of size."""

    def bound(**bounds: int) -> None:
        settings.PGJOBS = {**getattr(settings, "PGJOBS", {}), "BOUNDS": bounds}

    return bound


# Results that no row keeps


@pytest.mark.parametrize(("code", "times"), [(120, 99), (0, 1), (0xD800, 1)], ids=["large", "NUL", "half a character"])
def test_a_task_whose_result_no_row_keeps_has_succeeded(
    cast: Any, bounded: Any, caplog: pytest.LogCaptureFixture, code: int, times: int
) -> None:
    bounded(result_bytes=100)
    result = cast.spells.apply_async((code, times), link=cast.noted.si(), link_error=cast.errback.s())
    run_jobs()
    assert (result.state, result.get(timeout=5)) == ("SUCCESS", None)
    assert cast.log == [("spells", code, times), ("noted", [], {})]
    assert [each.levelname for each in caplog.records if "result dropped" in each.getMessage()] == ["WARNING"]


def test_a_result_that_no_json_holds_fails_its_task_where_celerys_backend_would(cast: Any) -> None:
    result = cast.unstorable.apply_async(link=cast.noted.si())
    run_jobs()
    if cast.app.conf.result_backend:
        assert (result.state, type(result.result)) == ("FAILURE", EncodeError)
    else:
        assert (result.state, result.result, cast.log) == ("SUCCESS", None, [("noted", [], {})])
    body = celery.chord([cast.unstorable.s(), cast.same.s(1)], cast.total.s())()
    run_jobs(include_scheduled=True, max_rounds=100)
    assert (body.state, "JSON serializable" in str(body.result)) == ("FAILURE", True)


def test_the_next_of_a_chain_gets_a_result_that_no_row_keeps(cast: Any, bounded: Any) -> None:
    bounded(result_bytes=100)
    result = celery.chain(cast.spells.s(120, 101), cast.add.s("y"), cast.noted.si())()
    run_jobs()
    assert (result.parent.result, result.result) == (None, "noted")
    assert cast.log == [("spells", 120, 101), ("add", "x" * 101, "y"), ("noted", [], {})]


@pytest.mark.parametrize(("kind", "errbacks"), [("task", 1), ("group", 2), ("chord", 3)])
def test_the_rest_of_a_chain_fails_if_no_row_can_hand_the_result_on(
    cast: Any, bounded: Any, kind: str, errbacks: int
) -> None:
    bounded(result_bytes=1000, payload_bytes=4000)
    cast.app.conf.task_allow_error_cb_on_chord_header = True
    following = {
        "task": lambda: cast.add.s("y"),
        "group": lambda: celery.group(cast.add.s("y"), cast.add.s("z")),
        "chord": lambda: celery.chord([cast.add.s("y"), cast.add.s("z")], cast.same.s()),
    }[kind]()
    last = [cast.noted.s()] if kind == "task" else []
    result = celery.chain(cast.spells.s(120, 5000), following, *last).apply_async(link_error=cast.errback.s())
    first = result
    while first.parent is not None:
        first = first.parent
    run_jobs(include_scheduled=True, max_rounds=100)
    assert (first.state, first.result) == ("SUCCESS", None)
    ends = result.results if kind == "group" else [result]
    assert {each.state for each in ends} == {"FAILURE"}
    assert "BOUNDS['payload_bytes']" in str(ends[0].result)
    assert [each[0] for each in cast.log] == ["spells"] + ["errback"] * errbacks
    assert not Job.objects.filter(finished_at=None).exists()


def test_a_chords_body_is_not_called_with_a_result_that_no_row_keeps(cast: Any, bounded: Any) -> None:
    bounded(result_bytes=100)
    header = [cast.spells.s(120, 101), cast.same.s(1)]
    result = celery.chord(header, cast.noted.s())()
    run_jobs(include_scheduled=True, max_rounds=100)
    assert [each.state for each in result.parent.results] == ["SUCCESS", "SUCCESS"]
    assert result.state == "FAILURE"
    assert "takes 103 bytes" in str(result.result)
    assert cast.log == [("spells", 120, 101)]


@pytest.mark.parametrize("more", [False, True], ids=["task", "chain"])
def test_a_chords_body_that_takes_nothing_needs_no_result(cast: Any, bounded: Any, more: bool) -> None:
    bounded(result_bytes=100)
    body = celery.chain(cast.same.si(1), cast.noted.s()) if more else cast.noted.si()
    result = celery.chord([cast.spells.s(120, 101), cast.same.s(1)], body)()
    run_jobs(include_scheduled=True, max_rounds=100)
    assert (result.state, result.result) == ("SUCCESS", "noted")
    assert cast.log == [("spells", 120, 101), ("noted", [1] * more, {})]


# Tasks that a failure leaves unrun


def failed_in_celerys_worker(app: Any, link: Any) -> list[Any]:
    """Run the first of a chain there, and return the results of the others."""
    chain = celery.chain(app.cast.fails.s("no"), *link)
    others = [each.freeze() for each in chain.tasks[1:]]
    request = {"id": str(uuid4()), "task": "shop.fails", "chain": [dict(each) for each in reversed(chain.tasks[1:])]}
    trace_task(app.cast.fails, request["id"], ("no",), {}, request, app=app)
    return others


@pytest.mark.parametrize(
    ("patterns", "rows"),
    [
        ({"tasks": ["shop.add", "shop.noted"]}, 2),
        ({"tasks": [], "queues": ["mail.*"]}, 1),
        ({"tasks": ["shop.same"]}, 0),
        ({"tasks": []}, 0),
    ],
    ids=["all", "by its queue", "others", "none"],
)
def test_the_rest_of_a_chain_fails_with_a_member_that_celerys_worker_runs(app: Any, patterns: Any, rows: int) -> None:
    install(app, **patterns)
    others = failed_in_celerys_worker(app, [app.cast.add.s(1), app.cast.noted.s().set(queue="mail.high")])
    assert Job.objects.count() == (rows if app.conf.result_backend is None else 0)
    run_jobs()
    stored = 2 if app.conf.result_backend else rows
    assert [(each.state, str(each.result)) for each in others[2 - stored :]] == [("FAILURE", "no")] * stored
    assert app.cast.log == []


def test_the_rest_of_a_chain_fails_with_a_job_though_celerys_workers_should_run_it(app: Any) -> None:
    install(app, tasks=["shop.fails"])
    result = celery.chain(app.cast.fails.s("no"), app.cast.add.s(1), app.cast.noted.s())()
    run_jobs()
    assert [(each.state, str(each.result)) for each in (result, result.parent)] == [("FAILURE", "no")] * 2
    assert app.cast.log == []
