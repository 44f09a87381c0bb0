"""Headers that a front gives with its rows: stored over those of middleware, for one job and for many (paper O3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs import Batch, Flow
from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.registering import encode, register
from django_pgjobs.registering.encode import Row
from django_pgjobs.registering.register import register_all, register_members, register_one
from django_pgjobs.states import TASK_HEADER
from django_pgjobs.store.registering import COPY_FROM_JOBS
from tests.db.registering_ground import pay, send, total

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh_throttle")]

TASK = {TASK_HEADER: {"backend": "default"}}

captured: dict[str, Any] = {}


def tenancy(run: Any) -> Any:
    return run


tenancy.capture = lambda: dict(captured)  # type: ignore[attr-defined]


@pytest.fixture
def _tenant(settings: Any) -> Iterator[None]:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": [f"{__name__}.tenancy"]}
    captured.update(tenant="north", trace="a1")
    yield
    captured.clear()


def row(number: int, headers: Any = None, **options: Any) -> Row:
    return Row(pay, pay._plan_with(**options), (number,), {}, headers)


def headers(ids: list[int]) -> list[Any]:
    found = Job.objects.in_bulk(ids)
    return [found[pk].headers for pk in ids]


@pytest.mark.parametrize("options", [{}, {"delay": 60}, {"tags": ["a"]}, {"unique": "k"}], ids=str)
def test_headers_of_a_row_are_stored(options: dict[str, Any]) -> None:
    registered: Any = register_one(row(1, TASK, **options))
    assert registered.headers == TASK
    registered.refresh_from_db()
    assert registered.headers == TASK


@pytest.mark.usefixtures("_tenant")
def test_headers_of_a_row_go_over_those_of_middleware() -> None:
    registered: Any = register_one(row(1, {**TASK, "trace": "b2"}))
    assert registered.headers == {"tenant": "north", "trace": "b2", **TASK}
    assert pay.register(2).headers == {"tenant": "north", "trace": "a1"}, "other jobs have none of it"


@pytest.mark.parametrize("count", [6, COPY_FROM_JOBS], ids=["insert", "copy"])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.usefixtures("_tenant")
def test_each_of_many_rows_keeps_its_own_headers(count: int, keyed: bool) -> None:
    """Runs of one mapping, rows without any and rows with a mapping each, in one batch."""
    own = [TASK if at % 6 < 3 else None if at % 6 == 3 else {"at": at} for at in range(count)]
    keys = [{"unique": f"k{at}"} if keyed else {} for at in range(count)]
    ids = register_all([row(at, own[at], **keys[at]) for at in range(count)], None, get_conf())
    assert headers(ids) == [{"tenant": "north", "trace": "a1", **(own[at] or {})} for at in range(count)]
    assert [Job.objects.get(pk=pk).payload["args"] for pk in ids[:5]] == [[at] for at in range(5)]


def test_rows_that_are_encoded_one_by_one_have_their_headers() -> None:
    """Arguments that can change are encoded before the next row is fetched."""
    rows = [Row(total, total._plan, ([1, at],), {}, TASK if at % 2 else None) for at in range(4)]
    assert headers(register_all(rows, None, get_conf())) == [None, TASK, None, TASK]


def test_one_mapping_of_many_rows_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else registering 100,000 tasks would take noticeably longer than as many jobs."""
    encoded: list[Any] = []

    def encode_result(value: Any, *bound: Any) -> str:
        encoded.append(value)
        return json.dumps(value)

    monkeypatch.setattr(encode, "encode_result", encode_result)
    rows = [Row(total, total._plan, ([at],), {}, TASK) for at in range(1200)]
    rows += [Row(pay, pay._plan, (at,), {}, TASK) for at in range(1200)]
    batch = encode.encode_all(rows, get_conf(), None)
    assert encoded == [TASK]
    assert len(batch.new) == 1200 + 3, "flat rows stay together, 500 at a time"


def test_members_of_a_batch_may_have_headers() -> None:
    with Batch() as batch:
        batch.add(pay.bind(1))
        assert register_members([row(2, TASK), row(3)], "default", get_conf(), batch.job.pk, False) == 2
    assert [found.headers for found in Job.objects.filter(parent=batch.job.pk).order_by("pk")] == [None, TASK, None]


@pytest.mark.usefixtures("_tenant")
def test_flows_batches_and_a_bypass_keep_the_headers_of_middleware() -> None:
    flow = Flow()
    flow.add(pay.bind(1))
    registered = flow.register()
    with Batch() as batch:
        batch.add_many([send.bind("a"), send.bind("b")])
    own = {"tenant": "north", "trace": "a1"}
    assert registered.headers == batch.job.headers == own
    assert [found.headers for found in Job.objects.exclude(parent=None)] == [own] * 3


@pytest.mark.parametrize("many", [False, True])
def test_headers_of_a_row_that_cannot_be_stored_are_refused(many: bool) -> None:
    bad = row(1, {TASK_HEADER: object()})
    with pytest.raises(InvalidJob, match=r"^(row 1: )?job 'tests\.\S+pay' has headers that cannot be stored: "):
        register_all([row(0), bad], None, get_conf()) if many else register_one(bad)
    assert not Job.objects.exists()


@pytest.mark.usefixtures("_tenant")
@pytest.mark.parametrize("call", [lambda: pay.register(1), lambda: pay.register_many([(1,), (2,)])])
def test_middleware_that_captures_the_header_of_tasks_is_refused(call: Any) -> None:
    captured["task"] = "mine"
    with pytest.raises(ImproperlyConfigured, match=r"tenancy\.capture\(\) must not return the header 'task'"):
        call()
    assert not Job.objects.exists()


def test_a_job_that_bypasses_the_queue_has_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: Queue[Any] = Queue()
    monkeypatch.setattr(register, "run_bypassed", ran.put)
    registered: Any = register_one(row(1, TASK, bypass=True))
    assert (registered.headers, json.loads(ran.get(timeout=5).headers)) == (TASK, TASK)
