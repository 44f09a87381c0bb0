"""The check: no question of it may miss what its duty would do. Otherwise jobs wait, and nothing says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from django.db import transaction

from django_pgjobs import clock
from django_pgjobs.maintenance.duties import (
    LEADER_SECONDS,
    OTHERS_SECONDS,
    TROUBLE_SECONDS,
    UNNEEDED_SECONDS,
    Checker,
    DutyProgress,
    TimedDuty,
    duties,
)
from django_pgjobs.maintenance.leader import ASK_SECONDS, Leader
from django_pgjobs.store import admitting, firing, gates, keeping, leading, limiting, pausing, pruning
from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.database import Params, Rows, statement
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.keeping import ThereIs
from django_pgjobs.worker.threads.maintainer import do_duty
from tests.db.cron_ground import declare, put, statements
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, register

RIVAL = Author(UUID(int=2), "rival")

DO: dict[str, Callable[[RawDatabase], object]] = {
    "leases": lambda db: keeping.rescue_jobs(
        db, limit=9, quiet_seconds=0, grace_seconds=10, stale_seconds=60, without_on_cancel=[], without_on_abandon=[]
    ),
    "paused_jobs": lambda db: pausing.unpause_jobs(db, limit=9),
    "gates": lambda db: gates.list_due_gates(db, limit=9),
    "limited_jobs": lambda db: admitting.list_limited(db, after=("", ""), limit=9),
    "pauses": pausing.read_pauses,
    "unled": lambda db: leading.take_term(db, AUTHOR, seconds=6),
    "expired_jobs": lambda db: (
        keeping.expire_jobs(db, after=pruning.OLDEST, limit=9, reason="expired", without_on_cancel=[]).jobs
    ),
    "fires": lambda db: [*firing.shelve_crons(db, seconds=9), *firing.list_crons(db, everything=False)],
    "crons": lambda db: firing.list_crons(db, everything=True),
}
"""What each duty does, or reads to know what to do: true if there is something."""


def ask(db: Any, *, leads: bool = True, after: str = pruning.OLDEST, lease: float = 0.0, fire: float = 0.0) -> ThereIs:
    return keeping.check_duties(db, lease_seconds=lease, fire_seconds=fire, leads=leads, expired_after=after)


def works(db: RawDatabase) -> dict[str, bool]:
    """Return what each duty would find, and leave everything as it was."""
    found = {}
    for question, do in DO.items():
        with db.raw.transaction(force_rollback=True):
            found[question] = bool(do(db))
    return found


def lose(raw: RawDatabase) -> None:
    register()
    claim(raw)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = now() - interval '1 s', check_at = now() - interval '1 s'")


def hold(why: str) -> Callable[[RawDatabase], object]:
    return lambda raw: raw.query("UPDATE pgjobs_job SET hold = %s WHERE id = ANY (%s)", [why, register()])


def leave_due(raw: RawDatabase) -> None:
    raw.query("INSERT INTO pgjobs_gate (job_id, due) VALUES (%s, true)", register())


def be_limited(raw: RawDatabase) -> None:
    limiting.override_limit(raw, "queue", ["mail"], Bounds(2), by="", reason="")


def be_paused(raw: RawDatabase) -> None:
    pausing.pause(raw, "queue", ["mail"], by="", reason="")


def lead(raw: RawDatabase) -> None:
    assert leading.take_term(raw, RIVAL, seconds=60)


def run_late(raw: RawDatabase) -> None:
    raw.query("UPDATE pgjobs_job SET expires_at = now() - interval '1 s' WHERE id = ANY (%s)", [register()])


def be_due(raw: RawDatabase) -> None:
    declare(raw)
    raw.query("UPDATE pgjobs_cron_entry SET next_fire_at = now() - interval '1 s'")


def wait_for_its_job(raw: RawDatabase) -> None:
    declare(raw, overlap="after_completion")
    raw.query("UPDATE pgjobs_job SET cron_entry = 'clean' WHERE id = ANY (%s)", [register()])


CAUSES: dict[str, tuple[Callable[[RawDatabase], object], set[str]]] = {
    "a lease that ran out": (lose, {"leases"}),
    "a job that a pause held": (hold("paused"), {"paused_jobs"}),
    "a job that a limit holds": (hold("limited"), {"limited_jobs"}),
    "a parked job": (hold("parked"), set()),
    "a gate that is due": (leave_due, {"gates"}),
    "a pause": (be_paused, {"pauses"}),
    "an operator's limit": (be_limited, {"pauses"}),
    "a job that has expired": (run_late, {"expired_jobs"}),
    "an entry without a plan": (declare, {"fires", "crons"}),
    "an entry that is due": (be_due, {"fires", "crons"}),
    "an entry whose last job has not ended": (wait_for_its_job, {"crons"}),
    "a ready job": (lambda raw: register(), set()),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_question_of_a_duty_is_answered_with_yes_where_it_has_something_to_do(raw: RawDatabase, cause: str) -> None:
    """And those of the others with no: else each row of one kind would have all duties look."""
    lead(raw)
    make, expected = CAUSES[cause]
    make(raw)
    found = ask(raw)._asdict()
    assert {question for question, there_is in found.items() if there_is} == expected
    assert {question for question, there_is in works(raw).items() if there_is} == expected
    others = ask(raw, leads=False)
    assert (others.expired_jobs, others.fires, others.crons) == (None, None, None)


def test_without_a_term_that_runs_there_is_no_leader(raw: RawDatabase) -> None:
    assert ask(raw).unled
    lead(raw)
    assert not ask(raw).unled
    raw.query("UPDATE pgjobs_leader_term SET expires_at = statement_timestamp()")
    assert ask(raw).unled


def test_what_comes_before_the_next_check_is_there_already(raw: RawDatabase) -> None:
    """A lease that runs out, a fire that is due between two checks: neither waits for the second."""
    register()
    claim(raw, lease=3.0)
    declare(raw)
    put(raw, next_fire_at=raw.value("SELECT statement_timestamp() + interval '3 s'"))
    assert (ask(raw).leases, ask(raw).fires) == (False, False)
    found = ask(raw, lease=3.5, fire=3.5)
    assert (found.leases, found.fires) == (True, True)


STATES = {
    "hold": ["NULL", "NULL", "NULL", "'paused'", "'limited'", "'parked'"],
    "name": ["'a'", "'b'"],
    "limit_key": ["NULL", "'key'"],
    "expires_at": ["NULL", "now() - interval '1 h'", "now() + interval '1 h'", "'-infinity'", "'infinity'"],
    "ending": ["NULL", "NULL", "'abandoned'"],
    "attempt": ["0", "0", "1"],
    "finished_at": ["NULL", "NULL", "now()"],
    "claim_id": ["NULL", "NULL", "gen_random_uuid()"],
}
INSTANTS = ["now() - interval '1 s'", "now() + interval '1 h'"]
ENTRIES = {
    "next_fire_at": ["NULL", *INSTANTS],
    "check_at": INSTANTS,
    "broken": ["''", "'it is'"],
    "enabled": ["true", "true", "false"],
    "missing_since": ["NULL", "NULL", "now()"],
    "paused_at": ["NULL", "NULL", "now()"],
    "paused_until": ["NULL", *INSTANTS],
    "misfire": ["'once'", "'all'"],
    "overlap": ["'allow'", "'after_completion'"],
    "fires_made": ["0", "3"],
    "max_fires": ["NULL", "3"],
}
CLAIMS = {"lease_expires_at": INSTANTS, "check_at": INSTANTS}
TABLES = (
    "pgjobs_job", "pgjobs_claim", "pgjobs_gate", "pgjobs_queue_state", "pgjobs_limit", "pgjobs_leader_term",
    "pgjobs_cron_entry",
)  # fmt: skip


class Dice:
    """Makes tables at random; a row that their constraints refuse is left out."""

    def __init__(self, raw: RawDatabase, seed: int) -> None:
        self.raw = raw
        self.dice = random.Random(seed)

    def columns(self, choices: dict[str, list[str]]) -> dict[str, str]:
        return {column: self.dice.choice(values) for column, values in choices.items()}

    def write(self, text: str) -> None:
        with suppress(psycopg.IntegrityError), self.raw.raw.transaction():
            self.raw.query(text.replace("%", "%%"))

    def throw(self) -> None:
        few = lambda: range(self.dice.choice([0, 0, 1, 2]))  # noqa: E731
        for _ in few():
            state = self.columns(STATES)
            state["outcome"] = "NULL" if state["finished_at"] == "NULL" else "'succeeded'"
            self.write(
                f"INSERT INTO pgjobs_job (payload, {', '.join(state)}) VALUES ('{{}}', {', '.join(state.values())})"
            )
        for _ in few():
            [job_id] = register()
            self.write(f"INSERT INTO pgjobs_gate (job_id, due) VALUES ({job_id}, {self.dice.random() < 0.5})")
        for number in few():
            declare(self.raw, f"entry{number}")
            self.change("pgjobs_cron_entry", ENTRIES, f"name = 'entry{number}'")
        for _ in few():
            register()
            held = claim(self.raw)
            if held.ids:
                self.change("pgjobs_claim", CLAIMS, f"claim_id = '{held.claim_id}'")
        for _ in few():
            kind, name = self.dice.choice(["queue", "job"]), self.dice.choice("ab")
            until = self.dice.choice(["NULL", "'infinity'", *INSTANTS])
            self.write(
                "INSERT INTO pgjobs_queue_state (kind, name, paused_at, paused_by, reason, until) "
                f"VALUES ('{kind}', '{name}', now(), '', '', {until})"
            )
        for _ in few():
            until = self.dice.choice(["NULL", "'infinity'", *INSTANTS])
            self.write(f"INSERT INTO pgjobs_limit (kind, name, concurrency, until) VALUES ('queue', 'a', 2, {until})")
        for _ in few():
            leading.take_term(self.raw, RIVAL, seconds=self.dice.choice([-1, 60]))

    def change(self, table: str, choices: dict[str, list[str]], where: str) -> None:
        sets = ", ".join(f"{column} = {value}" for column, value in self.columns(choices).items())
        self.write(f"UPDATE {table} SET {sets} WHERE {where}")


def missed(raw: RawDatabase) -> list[str]:
    """Return the questions that are answered with no though their duties have something to do."""
    found = ask(raw)._asdict()
    return [question for question, there_is in works(raw).items() if there_is and not found[question]]


def test_no_question_misses_what_its_duty_would_do(raw: RawDatabase) -> None:
    """Hundreds of tables at random."""
    seed = random.randrange(2**32)
    dice, seen = Dice(raw, seed), dict.fromkeys(DO, 0)
    for _ in range(300):
        with raw.raw.transaction(force_rollback=True):
            dice.throw()
            assert missed(raw) == [], f"seed {seed}"
            for question, there_is in works(raw).items():
                seen[question] += there_is
    assert min(seen.values()) > 5, seen


@pytest.mark.parametrize(
    ("part", "question"),
    [
        ("j.hold = 'paused'", "paused_jobs"),
        ("j.hold = 'limited'", "limited_jobs"),
        ("g.due", "gates"),
        ("j.expires_at <= statement_timestamp()", "expired_jobs"),
        ("e.next_fire_at <= statement_timestamp()", "fires"),
        ("e.check_at <= statement_timestamp()", "fires"),
        ("k.check_at <= statement_timestamp()", "leases"),
    ],
)
def test_the_test_above_finds_a_question_that_misses_rows(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, part: str, question: str
) -> None:
    """The sabotaged twins."""
    whole = statement("check_duties")
    less = whole.replace(part, f"false AND {part}")
    assert less != whole
    fetch = raw.fetch

    def sabotaged(name: str, params: Params) -> Rows:
        if name != "check_duties":
            return fetch(name, params)
        cursor = psycopg.Cursor(raw.raw)
        return cursor.execute(less, params, binary=True).fetchall()

    monkeypatch.setattr(raw, "fetch", sabotaged)
    dice = Dice(raw, 1)
    for _ in range(300):
        with raw.raw.transaction(force_rollback=True):
            dice.throw()
            if missed(raw) == [question]:
                return
    pytest.fail("nothing was missed")


# The duty


class Fleet:
    """A worker's duties on a connection that has been up for long."""

    def __init__(self, raw: RawDatabase, author: Author = AUTHOR) -> None:
        self.db = cast(Any, raw)
        self.db.connected_at, self.db.gone = -1e9, False
        self.db.orm = _orm
        self.leader = Leader(author)
        self.duties = duties(DutyProgress(self.leader, {}), lambda rescued: None)
        [self.check] = [duty for duty in self.duties if isinstance(duty, Checker)]

    def tick(self) -> None:
        for duty in self.duties:
            do_duty(duty.name, duty.tick, self.db)

    def duty(self, name: str) -> TimedDuty:
        [found] = [each for each in self.duties if isinstance(each, TimedDuty) and each.name == name]
        return found


@contextmanager
def _orm() -> Iterator[str]:
    with transaction.atomic():
        yield "default"


@pytest.mark.parametrize(("leads", "period"), [(True, LEADER_SECONDS), (False, OTHERS_SECONDS)])
def test_at_rest_a_worker_asks_once_a_period_and_nothing_else(
    raw: RawDatabase, time: Time, leads: bool, period: float
) -> None:
    if not leads:
        lead(raw)
    ours = Fleet(raw)
    ours.tick()
    time(period)
    ours.tick()  # right after an election the leader's answers are not known
    with statements(raw) as asked:
        for _ in range(10):
            time(period)
            if not leads:
                raw.query("UPDATE pgjobs_leader_term SET expires_at = statement_timestamp() + interval '60 s'")
            ours.tick()
    assert asked.count("check_duties") == 10
    assert set(asked) - {"check_duties", "unpark_jobs"} == ({"renew_term"} if leads else set())


def test_where_nobody_leads_the_next_check_finds_it_and_the_worker_leads_at_once(raw: RawDatabase, time: Time) -> None:
    """W4: as soon as if it had tried itself."""
    lead(raw)
    ours = Fleet(raw)
    ours.tick()
    raw.query("UPDATE pgjobs_leader_term SET expires_at = statement_timestamp()")
    time(OTHERS_SECONDS)
    ours.tick()
    assert ours.leader.leads
    assert OTHERS_SECONDS <= ASK_SECONDS


def test_an_answer_that_is_not_known_is_a_yes(
    raw: RawDatabase, time: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A locked table keeps the check from its answers: each duty looks for itself, as it did before there was one."""
    ours = Fleet(raw)
    for _ in range(2):
        ours.tick()
        time(LEADER_SECONDS)

    def locked(db: object, **asked: object) -> ThereIs:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr(keeping, "check_duties", locked)
    with statements(raw) as asked:
        for _ in range(4):
            ours.tick()
            time(1.0)
    for name in ("check_claims", "unpause_jobs", "list_due_gates", "list_crons", "expire_jobs"):
        assert asked.count(name) >= 3, name
    assert caplog.text.count("duty=check") == 1, "and it is not tried again at once"
    assert TROUBLE_SECONDS >= 4


@pytest.mark.parametrize("name", ["rescue", "unpause", "gates", "cron_eval", "expire_jobs"])
def test_a_duty_that_nothing_calls_for_looks_once_a_minute_all_the_same(
    raw: RawDatabase, time: Time, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A question that is wrong, in an older or a newer release, costs a minute and no job."""
    monkeypatch.setattr(keeping, "check_duties", lambda db, **asked: ThereIs(*[False] * 9))
    ours, turns = Fleet(raw), 0
    duty = ours.duty(name)
    perform = duty.perform

    def performed(db: Any) -> object:
        nonlocal turns
        turns += 1
        return perform(db)

    duty.perform = performed
    for _ in range(2):
        ours.tick()
        time(1.0)
    turns = 0
    for _ in range(int(UNNEEDED_SECONDS)):
        ours.tick()
        time(1.0)
    assert turns in (1, 2)


def test_what_a_leader_that_died_has_seen_its_heir_does(raw: RawDatabase, time: Time) -> None:
    """Killed between the check and the duty: nothing remembers an answer but the worker that asked."""
    first = Fleet(raw)
    first.tick()
    time(LEADER_SECONDS)
    run_late(raw)
    do_duty("check", first.check.tick, first.db)
    assert first.check.says("expired_jobs")
    raw.query("UPDATE pgjobs_leader_term SET expires_at = statement_timestamp()")
    heir = Fleet(raw, RIVAL)
    heir.tick()
    assert heir.leader.leads
    assert raw.value("SELECT ending FROM pgjobs_job") == "cancelled"


def test_a_check_that_took_long_was_a_silence(raw: RawDatabase, time: Time) -> None:
    """C9: leases may have expired meanwhile that their workers could not renew; they renew first."""
    ours = Fleet(raw)
    ours.tick()
    time(LEADER_SECONDS)
    fetch = raw.fetch

    def slow(name: str, params: Params) -> Rows:
        time(20.0 if name == "check_duties" else 0.0)
        return fetch(name, params)

    raw.fetch = slow  # type: ignore[method-assign]
    ours.tick()
    rescuer = cast(Any, ours.duty("rescue").perform)
    assert rescuer.quiet_until >= clock.monotonic() + 10


def test_pauses_that_the_check_has_seen_are_told(raw: RawDatabase, time: Time) -> None:
    told: list[bool] = []
    claims = SimpleNamespace(saw_pauses=told.append, holds=list, overdue=list, silences=lambda longer_than: [])
    found = duties(DutyProgress(Leader(AUTHOR), {}), lambda rescued: None, cast(Any, claims))
    [check] = [duty for duty in found if isinstance(duty, Checker)]
    check.tick(raw)
    be_paused(raw)
    time(OTHERS_SECONDS)
    check.tick(raw)
    assert told == [False, True]
