"""Rows that no statement of ours writes, and deaths that meet wishes: what becomes of the held jobs."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs import job as define
from django_pgjobs.finalising import END, PARK, RELEASE, SUCCESS
from django_pgjobs.registry import registry
from django_pgjobs.store import End
from django_pgjobs.worker.deaths import Death
from django_pgjobs.worker.dispatching import Dispatcher
from django_pgjobs.worker.holding import Holding
from django_pgjobs.worker.runs import MOST_CHARS, Run, Table
from tests.unit.worker_fakes import claimed, run_of


@define(name="holding.known")
def known() -> None: ...


class Acker:
    """Keeps what is queued."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, End]] = []

    def put(self, kind: str, run: Run, end: End) -> None:
        self.puts.append((kind, end))


@pytest.fixture
def acker() -> Acker:
    return Acker()


@pytest.fixture
def holding(acker: Acker) -> Holding:
    parts: Any = (Table(), Dispatcher(), acker)
    return Holding(*parts, hear=lambda pair: None, tell=lambda items: None)


@pytest.mark.parametrize("name", ["holding.known", "holding.unknown"])
@pytest.mark.parametrize(
    "facts",
    [
        {"ending": "forged"},
        {"ending": ""},
        {"headers": "x" * (MOST_CHARS + 1)},
        {"description": "x" * (MOST_CHARS + 1)},
    ],
)
def test_a_row_that_nobody_can_have_written_is_parked_and_ends_no_worker(
    holding: Holding, acker: Acker, facts: dict[str, Any], name: str
) -> None:
    """Every worker that claimed it would end of it, one after the other, for as long as it is there."""
    holding.adopt("a", 0.0, [claimed(1, name=name, **facts), claimed(2, name=name)])
    [(kind, end)] = acker.puts
    assert (kind, end.id) == (PARK, 1)
    assert end.fingerprint == (registry.get(name).fingerprint if name == "holding.known" else "")
    assert [run.job.id for run in holding.dispatcher.waiting[False]] == [2]


def test_a_callback_is_dispatched_with_its_stored_ending(holding: Holding, acker: Acker) -> None:
    holding.adopt("a", 0.0, [claimed(1, ending="abandoned", ending_attempt=1), claimed(2, cancelled=True)])
    assert [(kind, end.id, end.outcome) for kind, end in acker.puts] == [(END, 2, "cancelled")]
    [run] = holding.dispatcher.waiting[False]
    assert (run.kind, run.outcome) == ("on_abandon", "abandoned")


def test_of_jobs_that_died_in_company_only_those_run_again_that_shall(holding: Holding, acker: Acker) -> None:
    again, cancelled, released = run_of(1), run_of(2, cancelled=True), run_of(3, released=True)
    holding.settle(Death(-9, {}, suspects=[again, cancelled, released]))
    assert list(holding.dispatcher.suspects) == [again]
    assert [(kind, end.id) for kind, end in acker.puts] == [(END, 2), (RELEASE, 3)]


def test_a_worker_that_drains_hands_back_those_that_died_in_company(holding: Holding, acker: Acker) -> None:
    holding.draining = True
    holding.settle(Death(-9, {}, suspects=[run_of(1), run_of(2)]))
    assert [(kind, end.id) for kind, end in acker.puts] == [(RELEASE, 1), (RELEASE, 2)]
    assert SUCCESS not in dict(acker.puts)
