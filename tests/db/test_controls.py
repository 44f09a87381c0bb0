"""Requests to workers, by the statements: who is asked, what a heartbeat reads and says (I28)."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models.functions import Now

from django_pgjobs import sql
from django_pgjobs.models import Action, Heartbeat
from django_pgjobs.presentation.fleet import named_workers
from django_pgjobs.steering import workers as steering
from django_pgjobs.store import keeping
from django_pgjobs.store.keeping import Control
from tests.plugins.fix_db import RawDatabase
from tests.plugins.shell import printed

pytestmark = pytest.mark.usefixtures("committed")


@pytest.mark.parametrize("before", [["--queue", "mail"], ["--all"], ["--watch", "1"]])
def test_what_stands_before_the_verb_of_a_request_is_not_ignored(raw: RawDatabase, before: list[str]) -> None:
    worker = beating(raw)
    with pytest.raises(CommandError, match="only list"):
        call_command("pgjobs", "workers", *before, "drain", str(worker))
    assert raw.value("SELECT control FROM pgjobs_heartbeat") == ""


def test_the_format_before_the_verb_holds(raw: RawDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("pgjobs", "workers", "--format", "json", "quiet", str(beating(raw)))
    assert json.loads(capsys.readouterr().out)["verb"] == "quiet"


def test_a_name_means_those_that_left_only_if_none_lives(raw: RawDatabase) -> None:
    gone, lives = beating(raw, "stopped"), beating(raw)
    raw.query("UPDATE pgjobs_heartbeat SET name = 'web-1'")
    assert named_workers("default", ["web-1"]) == [(lives, "web-1")]
    assert named_workers("default", [str(gone)]) == [(gone, "web-1")]
    raw.query("DELETE FROM pgjobs_heartbeat WHERE id = %s", [lives])
    assert named_workers("default", ["web-1"]) == [(gone, "web-1")]


def test_all_means_those_that_are_alive(raw: RawDatabase) -> None:
    beating(raw, "lost")
    beating(raw, heard=3600.0)
    beating(raw, "stopped")
    there = beating(raw)
    status, text = printed("workers", "recycle", "--all")
    assert (status, text.count("\n")) == (0, 1), text
    assert Heartbeat.objects.get(control="recycle").pk == there


@pytest.mark.parametrize("verb", ["drain", "recycle"])
def test_one_that_drains_already_is_no_failure_of_a_request_to_all(raw: RawDatabase, verb: str) -> None:
    """But it is one for who has named that worker."""
    drains, there = beating(raw, "draining"), beating(raw)
    status, text = printed("workers", verb, "--all")
    assert (status, text.count("draining already")) == (0, 1), text
    assert Heartbeat.objects.get(control=verb).pk == there
    assert printed("workers", verb, str(drains))[0] == 1


def facts(worker: UUID, state: str = "running", taken: int = 0) -> dict[str, Any]:
    return {
        "id": worker, "name": f"w-{worker.hex[:4]}", "host": "h", "pid": 1, "queues": None, "excluded_queues": None,
        "processes": 1, "threads": 1, "async_slots": 1, "version": "0", "release": "", "state": state, "running": 0,
        "finished": 0, "protocol": 1, "control_taken": taken,
    }  # fmt: skip


def beating(raw: RawDatabase, state: str = "running", *, heard: float = 0.0) -> UUID:
    worker = uuid4()
    keeping.beat(raw, facts(worker, state))
    Heartbeat.objects.filter(pk=worker).update(last_beat_at=Now() - timedelta(seconds=heard))
    return worker


def ask(*workers: UUID, verb: str = "quiet") -> dict[UUID, tuple[str, bool]]:
    found = steering.ask("default", workers, verb, by="anna", reason="its disk")
    return {each.id: (each.status, each.was) for each in found}


def test_a_heartbeat_reads_the_last_request_and_says_what_was_taken_up(raw: RawDatabase) -> None:
    worker = beating(raw)
    assert keeping.beat(raw, facts(worker)) == Control(0, "", "", "")
    ask(worker)
    ask(worker, verb="recycle")
    assert keeping.beat(raw, facts(worker)) == Control(2, "recycle", "anna", "its disk"), "the last one wins"
    row = Heartbeat.objects.get(pk=worker)
    assert (row.is_asked, row.taken_at) == (True, None)
    keeping.beat(raw, facts(worker, taken=2))
    row.refresh_from_db()
    assert row.taken_at is not None
    assert row.controlled_at is not None
    assert (row.is_asked, row.control_by, row.taken_at >= row.controlled_at) == (False, "anna", True)
    keeping.beat(raw, facts(worker, taken=2))
    assert Heartbeat.objects.get(pk=worker).taken_at == row.taken_at, "when it was taken up, not the last beat"


@pytest.mark.parametrize(
    ("state", "heard", "status"),
    [("stopped", 0.0, "stopped"), ("lost", 0.0, "lost"), ("draining", 0.0, "draining"), ("running", 30.0, "silent"),
     ("running", 90.0, "lost")],
)  # fmt: skip
def test_a_worker_that_is_gone_or_drains_is_not_asked(raw: RawDatabase, state: str, heard: float, status: str) -> None:
    gone, there = beating(raw, state, heard=heard), beating(raw, "quiet")
    assert ask(gone, there, uuid4(), verb="resume") == {gone: (status, False), there: ("quiet", True)}
    assert Heartbeat.objects.get(pk=gone).control_number == 0
    [action] = Action.objects.all()
    assert (action.kind, action.verb, action.subject, action.acted_by) == (
        "worker",
        "resume",
        f"w-{there.hex[:4]}",
        "anna",
    )


def test_an_expired_row_goes_on_with_the_numbers_of_its_worker(raw: RawDatabase) -> None:
    """Else the next request would have a number that the worker has obeyed."""
    worker = beating(raw)
    ask(worker)
    Heartbeat.objects.all().delete()
    keeping.beat(raw, facts(worker, "quiet", taken=1))
    assert not Heartbeat.objects.get(pk=worker).is_asked
    ask(worker, verb="resume")
    assert keeping.beat(raw, facts(worker, "quiet", taken=1)) == Control(2, "resume", "anna", "its disk")


def test_a_failover_that_loses_a_request_does_not_lose_its_number(raw: RawDatabase) -> None:
    """The worker has obeyed it: a new request with that number would never be obeyed, and yet count as taken up."""
    worker = beating(raw)
    ask(worker)
    before = "control = '', control_number = 0, control_by = '', control_reason = '', controlled_at = NULL"
    raw.query(f"UPDATE pgjobs_heartbeat SET {before}")
    keeping.beat(raw, facts(worker, "quiet", taken=1))
    assert not Heartbeat.objects.get(pk=worker).is_asked
    ask(worker, verb="resume")
    assert keeping.beat(raw, facts(worker, "quiet", taken=1)) == Control(2, "resume", "anna", "its disk")
    assert Heartbeat.objects.get(pk=worker).is_asked


GUARDS = {
    "AND h.state IN ('running', 'quiet')": ("draining", 0.0),
    "AND h.last_beat_at > statement_timestamp() - make_interval(secs => %(silent)s::float8)": ("running", 3600.0),
}  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS, ids=["state", "heartbeat"])
def test_each_guard_of_the_request_keeps_something_off(raw: RawDatabase, guard: str) -> None:
    """Its red twin: without the line the same worker is asked."""
    state, heard = GUARDS[guard]
    worker = beating(raw, state, heard=heard)
    assert ask(worker)[worker][1] is False
    whole = sql.statement("control_workers")
    assert whole.count(guard) == 1
    twin = whole.replace(guard, "")
    given = {"control": "quiet", "by": "", "reason": "", "ids": [worker], "silent": 20.0, "stale": 60.0}
    assert [row[3] for row in raw.query(twin, given)] == [True]


def test_a_heartbeat_that_wrote_what_it_has_read_would_take_a_request_back(raw: RawDatabase) -> None:
    """The red twin of a statement that leaves the request alone."""
    worker = beating(raw)
    ask(worker)
    keeping.beat(raw, facts(worker))
    assert Heartbeat.objects.get(pk=worker).control_number == 1
    whole = sql.statement("beat")
    twin = whole.replace("greatest(h.control_number, excluded.control_taken)", "excluded.control_number")
    assert twin != whole
    raw.query(twin, {**keeping._BEATS_WITHOUT, **facts(worker)})
    assert Heartbeat.objects.get(pk=worker).control_number == 0


@pytest.mark.parametrize("seed", range(10))
def test_at_random_each_request_that_is_read_is_obeyed_once_and_the_row_never_says_too_much(
    raw: RawDatabase, seed: int
) -> None:
    """An operator asks three workers at random while they beat, obey, die and start again."""
    dice = random.Random(seed)
    crew = [Modelled(raw) for _ in range(3)]
    for _ in range(120):
        worker = dice.choice(crew)
        what = dice.random()
        if what < 0.35:
            verb = dice.choice(["quiet", "resume", "recycle", "drain"])
            chosen = dice.sample(crew, dice.randint(1, 3))
            said = ask(*(each.id for each in chosen), verb=verb)
            for each in chosen:
                assert said[each.id][1] is (each.written in ("running", "quiet")), (each.written, said[each.id])
                each.asked += [verb] if said[each.id][1] else []
        elif what < 0.8:
            worker.beat()
        elif what < 0.9:
            worker.obey()
        elif worker.written == "draining":
            worker.beat("stopped")
            crew[crew.index(worker)] = Modelled(raw)
        for each in crew:
            each.check()


class Modelled:
    """A worker as the model knows it: what it was asked, has read and obeyed, and the state that it wrote last."""

    def __init__(self, raw: RawDatabase) -> None:
        self.raw, self.id = raw, uuid4()
        self.asked: list[str] = []
        self.read = self.taken = self.told = 0
        self.state = "running"
        self.obeyed: list[int] = []
        self.beat()

    def beat(self, state: str = "") -> None:
        self.written = state or self.state
        control = keeping.beat(self.raw, facts(self.id, self.written, self.taken))
        self.told = self.taken
        assert control is not None
        assert (control.number, control.verb) == (len(self.asked), self.asked[-1] if self.asked else "")
        self.read = control.number

    def obey(self) -> None:
        if self.read > self.taken:
            self.obeyed.append(self.read)
            self.taken = self.read
            verb = self.asked[self.read - 1]
            self.state = {"quiet": "quiet", "resume": "running", "drain": "draining"}.get(verb, self.state)

    def check(self) -> None:
        row = Heartbeat.objects.get(pk=self.id)
        assert (row.control_number, row.control_taken, row.state) == (len(self.asked), self.told, self.written)
        assert self.obeyed == sorted(set(self.obeyed))
        assert row.control_taken in (0, *self.obeyed)
