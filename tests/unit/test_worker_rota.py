"""The rota's decisions, without a server: whom a notification wakes, and which schemas are looked at together."""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.store import schemas
from django_pgjobs.store.schemas import Found
from django_pgjobs.worker.threads import rota as module
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.inbox_messages import SchemasFound, SchemasNamed
from django_pgjobs.worker.threads.rota import TOGETHER, Rota

DB: Any = SimpleNamespace(connection=SimpleNamespace())


_due, _unled = attrgetter("due"), attrgetter("unled")


class Posted:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def post(self, message: Any) -> None:
        self.messages.append(message)

    def found(self) -> list[tuple[list[str], list[str]]]:
        """What was told of since the last call, in however many messages."""
        taken = [each for each in self.messages if isinstance(each, SchemasFound)]
        self.messages.clear()
        due, unled = ([name for each in taken for name in some(each)] for some in (_due, _unled))
        return [(sorted(due), sorted(unled))] if taken else []


class Hears:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_notify(self, payload: str) -> None:
        self.heard.append(payload)

    def begin(self) -> None:
        self.heard.append("begin")

    def end(self) -> None:
        self.heard.append("end")


class Answers:
    """What looks find, by schema; an exception is raised."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        self.asked: list[tuple[str, ...]] = []

    def scan_of(self, schemas: Any) -> Any:
        schemas = tuple(schemas)

        def ask(db: object, params: object, but: object) -> list[Found]:
            self.asked.append(schemas)
            found = [self.of.get(name, Found(name, None, False, False)) for name in schemas]
            for each in found:
                if isinstance(each, Exception):
                    raise each
            return found

        return SimpleNamespace(schemas=schemas, ask=ask)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(schemas, "scan_of", answers.scan_of)
    monkeypatch.setattr(schemas, "enter", lambda db, schema: None)
    monkeypatch.setattr(module, "_leave", lambda db: None)
    return answers


@pytest.fixture
def inbox() -> Posted:
    return Posted()


@pytest.fixture
def rota(answers: Answers, inbox: Posted) -> Rota:
    rota = Rota(lambda: DB, inbox, frontier=Frontier(None, frozenset({"not"})), listens=True, judge=lambda db: "")
    rota.are([f"t{n}" for n in range(40)])
    look(rota)
    assert inbox.messages == [SchemasNamed(rota.named)]
    inbox.messages.clear()
    answers.asked.clear()
    return rota


def look(rota: Rota) -> float:
    """Look as often as the rota wants at once; return how long it rests then."""
    while not (pause := rota._do_more(DB)):
        pass
    return pause


def hears(rota: Rota, schema: str) -> Hears:
    hearer: Any = Hears()
    rota.wakes(schema, hearer)
    return hearer  # type: ignore[no-any-return]


def test_a_notification_wakes_the_schema_that_it_names(rota: Rota, inbox: Posted, answers: Answers) -> None:
    rota._hand_on("0:default@t7")
    look(rota)
    assert inbox.found() == [(["t7"], [])]
    assert answers.asked == [], "it is woken without a look"


def test_the_name_of_a_schema_may_have_an_at_sign(rota: Rota, inbox: Posted) -> None:
    rota.are([*rota.named, "shop@home"])
    rota._hand_on("0:default@shop@home")
    look(rota)
    assert inbox.found() == [(["shop@home"], [])]


def test_one_that_is_awake_hears_it_and_no_other_does(rota: Rota, inbox: Posted) -> None:
    one, other = hears(rota, "t1"), hears(rota, "t2")
    rota._hand_on("0:default@t1")
    rota._hand_on("pauses@t2")
    look(rota)
    assert (one.heard, other.heard) == (["0:default"], ["pauses"])
    assert inbox.found() == []


@pytest.mark.parametrize("payload", ["0:not@t7", "0:default@elsewhere", "nonsense@", "@"])
def test_what_is_none_of_its_business_wakes_nothing(rota: Rota, inbox: Posted, payload: str) -> None:
    rota._hand_on(payload)
    look(rota)
    assert inbox.found() == []


def test_a_schema_that_is_not_known_is_asked_for_once(rota: Rota) -> None:
    asked: list[int] = []
    rota.ask_names = lambda: asked.append(1)
    for _ in range(3):
        rota._hand_on("0:default@new")
    assert asked == [1]


def test_without_a_name_all_hear_it_and_all_that_sleep_are_looked_at(rota: Rota, answers: Answers) -> None:
    one = hears(rota, "t1")
    rota._hand_on("0:default")
    assert one.heard == ["0:default"]
    rota.round_at = rota.took = 0.0
    rota._hand_on("0:default")
    look(rota)
    assert len(answers.asked) == 3


def test_a_schema_that_went_to_sleep_is_looked_at_first(rota: Rota, answers: Answers, inbox: Posted) -> None:
    hearer = hears(rota, "t20")
    answers.of["t20"] = Found("t20", -1.0, False, False)
    rota.sleeps("t20")
    look(rota)
    assert hearer.heard == ["end"]
    assert [len(asked) for asked in answers.asked] == [TOGETHER]
    assert inbox.found() == [(["t20"], [])]


def test_a_notification_waits_for_one_look_and_not_for_a_round(rota: Rota, answers: Answers, inbox: Posted) -> None:
    rota.next_round = 0.0
    assert rota._do_more(DB) == 0.0
    rota._hand_on("0:default@t39")
    assert rota._do_more(DB) == 0.0
    assert len(answers.asked) == 2
    assert inbox.found() == [(["t39"], [])]


def test_notifications_without_a_name_do_not_begin_a_round_anew(rota: Rota, answers: Answers) -> None:
    """The last schemas would never be looked at while they come."""
    rota.next_round = 0.0
    for _ in range(3):
        rota._do_more(DB)
        rota._hand_on("0:default")
    assert len(set(answers.asked)) == 3
    assert rota.next_round - rota.round_at < 1.0, "it hurries to the next"


def test_while_the_worker_is_quiet_only_duties_wake(rota: Rota, answers: Answers, inbox: Posted) -> None:
    """What is due then, or was to be later, is found when it resumes."""
    answers.of = {"t3": Found("t3", 0.0, False, False), "t4": Found("t4", 0.0, True, False)}
    rota.due_at["t5"] = 0.0
    rota.be_quiet(True)
    rota._hand_on("0:default@t6")
    look(rota)
    assert inbox.found() == [(["t4"], [])]
    assert rota.due_at == {}
    rota.be_quiet(False)
    look(rota)
    assert inbox.found() == [(["t3", "t4"], [])]


def test_a_job_that_is_due_later_wakes_its_schema_in_time(rota: Rota, answers: Answers, inbox: Posted) -> None:
    answers.of["t3"] = Found("t3", 0.4, False, False)
    rota.next_round = 0.0
    pause = look(rota)
    assert inbox.found() == []
    assert 0.3 < pause <= 0.35
    rota.due_at["t3"] = clock.monotonic()
    look(rota)
    assert inbox.found() == [(["t3"], [])]


def test_a_duty_wakes_at_once_and_one_without_a_leader_is_told_apart(
    rota: Rota, answers: Answers, inbox: Posted
) -> None:
    answers.of = {"t3": Found("t3", None, True, True), "t4": Found("t4", 100.0, False, True)}
    rota.next_round = 0.0
    look(rota)
    assert [each.duties for each in inbox.messages if each.duties] == [["t3"]]
    assert inbox.found() == [(["t3"], ["t4"])]


@pytest.mark.parametrize(("notice", "duty"), [("0:default", False), ("limited:default", True), ("pauses", True)])
def test_a_notification_says_whether_there_is_more_than_a_job(
    rota: Rota, inbox: Posted, notice: str, duty: bool
) -> None:
    rota._hand_on(f"{notice}@t3")
    look(rota)
    assert [list(each.duties) for each in inbox.messages] == [["t3"] if duty else []]


def test_who_cannot_be_looked_at_is_mark_unserved_and_costs_the_others_nothing(
    rota: Rota, answers: Answers, inbox: Posted
) -> None:
    answers.of = {"t3": psycopg.errors.UndefinedTable("gone"), "t4": Found("t4", 0.0, False, False)}
    rota.next_round = 0.0
    look(rota)
    assert inbox.found() == [(["t4"], [])]
    assert rota.unserved.keys() == {"t3"}
    answers.asked.clear()
    rota.next_round = 0.0
    look(rota)
    assert inbox.found() == [(["t4"], [])]
    assert "t3" not in {name for asked in answers.asked for name in asked}
    rota.unserved["t3"] = (0.0, 1)
    answers.of["t3"] = Found("t3", 0.0, False, False)
    rota.next_round = 0.0
    look(rota)
    assert ("t3",) in answers.asked
    assert inbox.found() == [(["t3", "t4"], [])]
    assert rota.unserved == {}


def test_trouble_of_the_server_sets_no_schema_aside(rota: Rota, answers: Answers) -> None:
    answers.of["t3"] = psycopg.OperationalError("the server is away")
    rota.next_round = 0.0
    with pytest.raises(psycopg.OperationalError):
        look(rota)
    assert rota.unserved == {}


def test_a_schema_that_this_code_cannot_serve_is_not_woken(rota: Rota, answers: Answers, inbox: Posted) -> None:
    why = ["a column does not exist"]
    rota.judge = lambda db: why[0]
    rota._hand_on("0:default@t3")
    look(rota)
    assert inbox.found() == []
    why[0] = ""
    rota.unserved["t3"] = (0.0, 1)
    rota._hand_on("0:default@t3")
    look(rota)
    assert inbox.found() == [(["t3"], [])]


def test_looks_stay_as_they_are_where_no_schema_comes_or_goes(rota: Rota) -> None:
    """The server has planned each: another text would be planned anew."""
    before = list(rota.scans)
    rota.are([*(f"t{n}" for n in range(1, 40)), "new"])
    look(rota)
    assert sum(scan in before for scan in rota.scans) == len(before) - 1
    assert sorted(name for scan in rota.scans for name in scan.schemas) == sorted(rota.named)
    assert max(len(scan.schemas) for scan in rota.scans) == TOGETHER


def test_without_notifications_it_hears_nothing(answers: Answers, inbox: Posted) -> None:
    rota = Rota(lambda: DB, inbox, frontier=Frontier(None, frozenset()), listens=False, judge=lambda db: "")
    hearer = hears(rota, "t1")
    rota._ask(DB)
    rota._begin()
    assert hearer.heard == []


def test_who_is_served_again_is_looked_at_with_the_others(rota: Rota, answers: Answers, inbox: Posted) -> None:
    """Even with nothing to do: by itself it would be one more statement in each round."""
    answers.of = {"t3": psycopg.errors.UndefinedTable("gone")}
    rota.next_round = 0.0
    look(rota)
    rota.unserved["t3"] = 0.0, 1
    del answers.of["t3"]
    rota.next_round = 0.0
    look(rota)
    assert (rota.unserved, rota.said) == ({}, {})
    answers.asked.clear()
    rota.next_round = 0.0
    look(rota)
    assert len(answers.asked) == 3


def test_who_can_be_looked_at_and_not_served_is_tried_more_and_more_seldom(
    rota: Rota, answers: Answers, inbox: Posted
) -> None:
    rota.judge = lambda db: "not migrated"
    answers.of = {"t3": Found("t3", 0.0, False, False)}
    for tries in (1, 2, 3):
        rota.next_round = 0.0
        look(rota)
        assert rota.unserved["t3"][1] == tries
        rota.unserved["t3"] = 0.0, tries
    assert inbox.found() == []


def test_a_schema_that_is_named_no_more_is_forgotten(rota: Rota, answers: Answers, inbox: Posted) -> None:
    """It kept the looks from staying as they were, and one made again under its name was not judged."""
    judged: list[int] = []

    def judge(db: object) -> str:
        judged.append(1)
        return ""

    rota.judge = judge
    answers.of = {"t3": psycopg.errors.UndefinedTable("gone")}
    rota.judged.add("t4")
    rota.next_round = 0.0
    look(rota)
    assert rota.unserved.keys() == rota.said.keys() == {"t3"}
    rota.are(rota.named - {"t3", "t4"})
    look(rota)
    assert (rota.unserved, rota.said) == ({}, {})
    scans = rota.scans
    look(rota)
    assert rota.scans is scans, "nothing is arranged anew"
    answers.of = {}
    rota.are(rota.named | {"t4"})
    rota._hand_on("0:default@t4")
    look(rota)
    assert judged == [1]


def test_a_name_that_anyone_may_send_is_not_kept_for_ever(rota: Rota) -> None:
    for n in range(module.MOST_STRANGERS + 2):
        rota._hand_on(f"0:default@made-up-{n}")
    rota.are(rota.named)
    assert rota.strangers == set()


def test_the_server_keeps_no_look_that_is_made_no_more(rota: Rota) -> None:
    """Each is of some kilobytes there."""
    assert DB.connection.prepared_max == 3 + module.OTHERS_PREPARED
    rota.are([f"t{n}" for n in range(80)])
    look(rota)
    assert DB.connection.prepared_max == 5 + module.OTHERS_PREPARED
