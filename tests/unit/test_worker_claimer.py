"""When the claim thread claims, what it parks, and that nothing it takes is left to nobody."""

from __future__ import annotations

import itertools
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob, ClaimReply, Line, Pair
from django_pgjobs.store.database import is_data_trouble
from django_pgjobs.worker.threads import claimer as claimer_module
from django_pgjobs.worker.threads.claimer import DEAF_POLL_SECONDS, Claimer
from django_pgjobs.worker.threads.inbox_messages import Claimed, Idle
from django_pgjobs.worker.threads.listener import Listener
from django_pgjobs.worker.threads.reach import BEGINNING
from django_pgjobs.worker.threads.ready_hints import MOST_HINTS
from django_pgjobs.worker.threads.tour import MOST_PAIRS
from tests.unit.claimer_fakes import DB, TOO_LARGE, Ledger, refusing, taking_one
from tests.unit.worker_fakes import DUE, Heard, claimed


def taking(monkeypatch: pytest.MonkeyPatch, take: Any) -> None:
    """Of the line of threads, as all have that know no ``async def`` job."""

    def claim_lines(db: Any, lines: dict[bool, Line], names: Any, **_: Any) -> ClaimReply:
        return ClaimReply(take(list(lines[False].pairs), lines[False].limit), None)

    monkeypatch.setattr(claiming, "claim_lines", claim_lines)


def test_a_claim_that_is_under_way_while_the_worker_drains_is_waited_for(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its jobs would stay with a worker that is gone: charged, and with one attempt abandoned unrun."""
    seen = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        claimer.halt()
        seen.append(claimer.busy)
        return [claimed(1), claimed(2)]

    taking(monkeypatch, take)
    claimer._claim(DB, {False: 5})
    seen.append(claimer.busy)
    claimer.adopted([claimed(1), claimed(2)])
    assert [*seen, claimer.busy] == [True, True, False]
    assert [type(message) for message in heard.posts] == [Claimed]


def test_a_line_with_nothing_to_claim_from_is_not_hungry(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the last claim was full: other homes would leave places to a queue that is paused."""
    taking(monkeypatch, lambda plan, limit: [claimed(1), claimed(2)])
    claimer._claim(DB, {False: 2})
    assert claimer.is_hungry(False, clock.monotonic())
    claimer.pause(frozenset({"a", "b"}))
    claimer.seen = claimer.notified
    assert claimer._claim(DB, {False: 2}) is False
    assert not claimer.is_hungry(False, clock.monotonic())


def test_one_that_rests_after_trouble_is_not_hungry(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    claimer.wake_for(("a", 0))
    assert claimer.is_hungry(False, clock.monotonic())
    seen: list[bool] = []
    monkeypatch.setattr(claimer.stopping, "wait", lambda seconds: seen.append(claimer.is_hungry(False, 0.0)))
    claimer._pause(1)
    assert (seen, claimer.is_hungry(False, clock.monotonic())) == ([False], True)


def test_no_claim_begins_once_the_worker_drains(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it was wanted a moment ago."""
    taking(monkeypatch, lambda plan, limit: pytest.fail("claimed"))
    claimer.request(5)
    claimer.halt()
    assert claimer._claim(DB, {False: 5}) is False
    assert not claimer.busy


def test_a_claim_whose_server_is_away_is_not_waited_for(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.OperationalError("server closed the connection")

    taking(monkeypatch, take)
    with pytest.raises(psycopg.OperationalError):
        claimer._claim(DB, {False: 5})
    assert claimer.unconfirmed is not None
    claimer.reachable = False
    assert not claimer.busy


@pytest.mark.parametrize("turns", [0, 1])
def test_the_row_that_is_parked_is_of_the_claim_that_failed(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Queues take turns from plan to plan: the first row of another plan's first queue is innocent."""
    failed: list[str] = []
    parked: list[int] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        failed.append(plan[0].queue)
        raise TOO_LARGE

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: {"a": 7, "b": 8}[plan[0].queue])
    taking_one(monkeypatch, lambda job_id: refusing([], 1))

    def park(db: Any, job_id: int, *_: Any) -> list[int]:
        parked.append(job_id)
        return [job_id]

    monkeypatch.setattr(claiming, "park_unclaimable", park)
    claimer.frontier.rotation = turns
    assert claimer._claim(DB, {False: 4})
    assert len(failed) == 3  # 4, 2, 1
    assert parked == [{"a": 7, "b": 8}[failed[-1]]]
    assert not claimer.busy


def test_a_row_that_can_be_claimed_after_all_is_claimed_and_not_parked(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has parked the one that failed; what is the first now is innocent, and would stay parked."""
    taking(monkeypatch, refusing)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: 9)
    taking_one(monkeypatch, lambda job_id: [claimed(job_id)])
    monkeypatch.setattr(claiming, "park_unclaimable", lambda *_: pytest.fail("parked"))
    assert claimer._claim(DB, {False: 1})
    [message] = heard.of(Claimed)
    assert ([job.id for job in message.jobs], claimer.room.unadopted) == ([9], {False: 1})
    assert claimer.unconfirmed is None


def test_nothing_is_parked_when_no_row_is_left_that_fails(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, refusing)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: None)
    monkeypatch.setattr(claiming, "park_unclaimable", lambda *_: pytest.fail("parked"))
    assert claimer._claim(DB, {False: 1})
    assert not claimer.busy


def test_a_worker_that_drains_claims_no_row_to_learn_whether_it_fails(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_claimable(db: Any, plan: list[Pair], **_: Any) -> int:
        claimer.halt()
        return 9

    taking(monkeypatch, refusing)
    monkeypatch.setattr(claiming, "next_claimable", next_claimable)
    taking_one(monkeypatch, lambda job_id: pytest.fail("claimed"))
    claimer._claim(DB, {False: 1})
    assert not claimer.busy


def test_other_trouble_parks_nothing(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.errors.InsufficientPrivilege("permission denied")

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "park_unclaimable", lambda *_: pytest.fail("parked"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        claimer._claim(DB, {False: 1})


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (psycopg.errors.DatetimeFieldOverflow("x"), True),
        (psycopg.errors.ProgramLimitExceeded("x"), True),
        (psycopg.errors.InternalError_("x"), True),
        (psycopg.DataError("NUL"), True),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), True),
        (psycopg.errors.QueryCanceled("x"), False),
        (psycopg.OperationalError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_trouble_with_a_row_is_told_from_trouble_with_the_server(error: Exception, data: bool) -> None:
    assert is_data_trouble(error) is data


def test_a_look_from_the_beginning_that_takes_too_long_is_not_repeated_at_once(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        begun.append(plan[0].id)
        if not plan[0].id:
            raise psycopg.errors.QueryCanceled("statement timeout")
        return []

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0)])
    monkeypatch.setattr(clock, "monotonic", itertools.count(1.0).__next__)
    claimer.frontier.learn([("a", 0)])
    claimer.frontier.reaches["a", 0].at = (DUE, 40)
    claimer.frontier.reaches["a", 0].near_due = 99.0
    with pytest.raises(psycopg.errors.QueryCanceled):
        claimer._claim(DB, {False: 5})
    claimer._claim(DB, {False: 5})
    assert begun == [0, 40]


def test_a_locked_table_says_nothing_of_where_to_begin(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim waited for somebody's lock: its sweep was not dear, and goes on as it was."""

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")

    taking(monkeypatch, take)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        claimer._claim(DB, {False: 5})
    assert not claimer.busy
    assert [(reach.at, reach.halvings) for reach in claimer.frontier.reaches.values()] == [(BEGINNING, 0)] * 2


def test_a_list_of_queues_that_takes_too_long_stops_no_claim(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def canceled(db: Any) -> list[tuple[str, int]]:
        raise psycopg.errors.QueryCanceled("statement timeout")

    taking(monkeypatch, lambda plan, limit: [claimed(1, queue=plan[0].queue)])
    monkeypatch.setattr(claiming, "list_pairs", canceled)
    with pytest.raises(psycopg.errors.QueryCanceled):
        claimer._claim(DB, {False: 1})
    claimer.frontier.learn([("a", 0)])
    assert claimer._claim(DB, {False: 1})


def test_after_a_slow_look_what_becomes_due_does_not_wait_for_the_next(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look is far then; what is due before it is found at the frontier, within a second."""
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    slept: list[float] = []

    def sleep(seconds: float, notified: int) -> bool:
        slept.append(seconds)
        return False

    monkeypatch.setattr(claimer, "_sleep", sleep)
    claimer.frontier.learn([("a", 0)])
    for scan_due, due in [(60.0, None), (60.0, 0.5), (0.25, None), (-1.0, None)]:
        monkeypatch.setattr(claiming, "next_due", lambda db, pairs, due=due: due)
        claimer.frontier.reaches["a", 0].scan_due = scan_due
        claimer._rest(DB, 0)
    assert slept == [DEAF_POLL_SECONDS, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(("known_until", "expected"), [(5.0, 10.7), (99.0, 99.0)])
def test_what_is_heard_while_a_job_is_waited_for_is_claimed_before_the_list_of_pairs_is_read(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, known_until: float, expected: float
) -> None:
    """And one that is known for longer is not read sooner for it."""
    monkeypatch.setattr(clock, "monotonic", lambda: 10.0)
    monkeypatch.setattr(claiming, "next_due", lambda db, pairs: 0.5)
    claimer.frontier.learn([("a", 0)])
    claimer.frontier.reaches["a", 0].scanned = 9.0
    claimer.hints.list_due = known_until

    def sleep(seconds: float, notified: int) -> bool:
        assert seconds == 0.5
        claimer.settles_at = 10.7
        return True

    monkeypatch.setattr(claimer, "_sleep", sleep)
    claimer._rest(DB, 0)
    assert claimer.hints.list_due == expected


def test_idle_means_that_everything_was_swept_since_something_was_last_found(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that runs until idle must not leave what has come in behind its frontier."""
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(claimer, "_sleep", lambda seconds, notified: False)
    found = [[claimed(1, queue="a")], [], []]
    taking(monkeypatch, lambda plan, limit: found.pop(0))
    reaches = claimer.frontier.reaches
    claimer.frontier.learn([("a", 0), ("b", 0)])
    for reach in reaches.values():
        reach.at, reach.scan_due, reach.scanned = (DUE, 0), 99.0, 9.0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, 0)
    assert [type(message) for message in heard.posts] == [Claimed], "swept before, and something came since"
    now[0] = 11.0
    reaches["a", 0].scan_due = 0.0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, 0)
    assert [type(message) for message in heard.posts] == [Claimed], "one of two is not enough"
    now[0] = 12.0
    reaches["b", 0].scan_due = 0.0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, 0)
    assert heard.posts[-1] == Idle(12.0)


def test_a_registration_right_after_one_that_was_heard_does_not_wait_for_the_poll(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer notifies at most every 5 ms. The claim that finds the first, and the one after it, come too early."""
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    slept: list[float] = []

    def sleep(seconds: float, notified: int) -> bool:
        slept.append(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr(claimer, "_sleep", sleep)
    found = [[claimed(1, queue="a")], [], []]
    taking(monkeypatch, lambda plan, limit: found.pop(0))
    claimer.listening.set()
    claimer.frontier.learn([("a", 0)])
    claimer.wake_for(("a", 0))
    for _ in range(2):
        claimer._claim(DB, {False: 5})
        now[0] += 0.001
    claimer._rest(DB, claimer.notified)
    assert slept == [pytest.approx(claimer_module.POLL_AGAIN_SECONDS - 0.002)]
    assert claimer.frontier.reaches["a", 0].near_due < 0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, claimer.notified)
    assert [type(message) for message in heard.posts] == [Claimed, Idle]
    assert slept[1:] == [claimer_module.FIRST_POLL_SECONDS], "and longer and longer: it may have been locked"


def test_while_a_producer_is_busy_the_claimer_looks_again_and_again(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is registered meanwhile comes without a notification. Only behind the last look is the worker idle."""
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    looks: list[float] = []

    def sleep(seconds: float, notified: int) -> bool:
        now[0] += seconds
        return False

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        looks.append(now[0] - 10.0)
        return []

    monkeypatch.setattr(claimer, "_sleep", sleep)
    taking(monkeypatch, take)
    claimer.listening.set()
    claimer.frontier.learn([("a", 0)])
    claimer.wake_for(("a", 0))
    claimer.keep_polling()
    while not heard.of(Idle):
        claimer._claim(DB, {False: 5})
        claimer._rest(DB, claimer.notified)
    pauses = [after - before for before, after in pairwise(looks)]
    assert pauses[:3] == [pytest.approx(each) for each in (0.002, 0.004, 0.008)], "twice as late each time"
    assert looks[-1] == pytest.approx(claimer_module.BUSY_SECONDS)


def test_while_a_producer_is_busy_a_claimer_that_finds_jobs_looks_again_soon(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    pauses: list[float] = []
    monkeypatch.setattr(claimer, "_sleep", lambda seconds, notified: pauses.append(seconds))
    found = [[], [], [], [claimed(1, queue="a")], [], []]
    taking(monkeypatch, lambda plan, limit: found.pop(0))
    claimer.listening.set()
    claimer.frontier.learn([("a", 0)])
    claimer.wake_for(("a", 0))
    claimer.keep_polling()
    for _ in range(6):
        claimer._claim(DB, {False: 5})
        claimer._rest(DB, claimer.notified)
    assert pauses == [pytest.approx(each) for each in (0.002, 0.004, 0.008, 0.001, 0.002, 0.004)]


def test_what_an_idle_worker_hears_of_is_claimed_once_and_first(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second claim would be in the way of the job's start, and the list of pairs tells nothing that it needs."""
    now = [10.0]
    done: list[str] = []
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def sleep(seconds: float, notified: int) -> bool:
        done.append("sleep")
        if idle := seconds == claimer.options.poll_seconds:
            seconds = 0.3
        now[0] += seconds
        if idle:
            claimer.wake_for(("a", 0))
        return idle

    def list_pairs(db: Any) -> list[tuple[str, int]]:
        done.append("list")
        return [("a", 0)]

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        done.append("claim")
        if done.count("claim") == 3:
            claimer.stop()
        return [claimed(1, queue="a")] if done.count("claim") == 2 else []

    monkeypatch.setattr(claimer, "_sleep", sleep)
    monkeypatch.setattr(claiming, "list_pairs", list_pairs)
    taking(monkeypatch, take)
    claimer.listening.set()
    claimer.request(5)
    claimer.serve(DB)
    assert done[:7] == ["list", "claim", "sleep", "claim", "sleep", "list", "claim"]


@pytest.mark.parametrize(
    ("found", "listening", "again"), [(5, True, True), (2, True, False), (2, False, True), (0, False, False)]
)
def test_whoever_hears_of_registrations_does_not_ask_in_vain(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, found: int, listening: bool, again: bool
) -> None:
    """A claim that came back short has seen everything; a deaf worker asks on while something comes in."""
    if listening:
        claimer.listening.set()
    claimer.room.wanted = {False: 9}
    taking(monkeypatch, lambda plan, limit: [claimed(number, queue="a") for number in range(found)])
    assert claimer._claim(DB, {False: 5}) is again


# What is heard


def wake_up() -> None:
    raise AssertionError("nothing here is held by a limit")


class Notice:
    def __init__(self, payload: str) -> None:
        self.payload = payload


@pytest.mark.parametrize(
    "payload",
    [
        "", ":", "5", "5:", ":a", "--5:a", "²:a", "٣:a", "1e3:a", "-99999:a", "99999999999999999999:a",
        "5:a b", "5:a\nb", "5:" + "a" * 101, "5:excluded",
    ],
)  # fmt: skip
def test_what_no_registration_sends_is_not_believed(claimer: Claimer, payload: str) -> None:
    """Every role of the database may notify; a priority that no column holds would make every claim fail."""
    claimer.frontier.excluded = frozenset({"excluded"})
    Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)._hand_on(payload)
    assert (claimer.hints.pairs, claimer.notified) == (set(), 0)


def test_an_admitter_hears_of_what_a_limit_holds_and_the_claim_thread_does_not(claimer: Claimer) -> None:
    stirred: list[int] = []
    claimer.frontier.excluded = frozenset({"excluded"})
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, lambda: stirred.append(1))
    for payload in ("limited:a", "limited:", "limited:excluded", "limited:a b", "Limited:a"):
        listener._hand_on(payload)
    assert (stirred, claimer.hints.pairs) == ([1], set())


def test_of_what_was_given_back_the_next_claim_hears(claimer: Claimer) -> None:
    claimer.frontier.excluded = frozenset({"excluded"})
    claimer.frontier.learn([("a", 0), ("b", 0)])
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    for payload in ("behind:a", "behind:", "behind:excluded", "behind:a b", "Behind:b"):
        listener._hand_on(payload)
    assert (claimer.hints.released, claimer.notified, claimer.hints.pairs) == ({"a"}, 1, set())
    claimer.hints.hand_over(claimer.lines.values())
    assert [reach.behind for reach in claimer.frontier.reaches.values()] == [True, False]
    assert not claimer.hints.released


def test_that_a_producer_is_busy_is_heard_for_queues_that_are_served(claimer: Claimer) -> None:
    claimer.frontier.excluded = frozenset({"excluded"})
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    for payload in ("busy:excluded", "busy:", "busy:a b", "Busy:a"):
        listener._hand_on(payload)
    assert claimer.settles_at == 0.0
    listener._hand_on("busy:a")
    assert claimer.settles_at > clock.monotonic()
    assert claimer.hints.pairs == set()


@pytest.mark.parametrize(
    ("payload", "pair"), [("0:a", ("a", 0)), ("-100:a.b:c", ("a.b:c", -100)), ("100:x", ("x", 100))]
)
def test_a_registration_is_heard(claimer: Claimer, payload: str, pair: tuple[str, int]) -> None:
    Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)._hand_on(payload)
    assert (claimer.hints.pairs, claimer.notified) == ({pair}, 1)


def test_names_without_end_are_not_kept_without_end(claimer: Claimer) -> None:
    """While every thread is busy nothing asks for what was heard; the list of queues has it all."""
    claimer.hints.list_due = 99.0
    for number in range(MOST_HINTS + 5):
        claimer.wake_for((f"q{number}", 0))
        claimer.wake_for_released(f"q{number}")
    hints = claimer.hints
    assert (len(hints.pairs), hints.list_due, len(hints.released)) == (MOST_HINTS, 0.0, MOST_HINTS)
    claimer.frontier.learn([("last", 0)])
    claimer.hints.hand_over(claimer.lines.values())
    assert all(reach.behind for reach in claimer.frontier.reaches.values()), "one of those too many may be any"
    assert (claimer.hints.released_anywhere, claimer.hints.released) == (False, set())


def test_what_was_let_in_is_heard_of_and_looked_for_behind_the_frontier(claimer: Claimer) -> None:
    claimer.wake_for_admitted(("a", 0))
    assert (claimer.hints.pairs, claimer.hints.admitted, claimer.notified) == ({("a", 0)}, {("a", 0)}, 1)
    claimer.hints.hand_over(claimer.lines.values())
    assert (claimer.hints.pairs, claimer.hints.admitted) == (set(), set())
    assert claimer.frontier.reaches["a", 0].admitted_due < 0.0
    for number in range(MOST_HINTS + 5):
        claimer.wake_for_admitted((f"q{number}", 0))
    assert len(claimer.hints.admitted) == MOST_HINTS


class Way:
    """A listening connection: notices arrive as a test says, one look after the other."""

    def __init__(self, looks: list[list[Notice]], stop: Any) -> None:
        self.pooled = False
        self.connection = self
        self.asked = self.statements = 0
        self.looks = looks
        self.stop = stop

    def fetch(self, name: str, params: Any) -> list[Any]:
        self.asked += 1
        return []

    def wait_for_news(self, seconds: float, bell: Any) -> None: ...

    def notifies(self, *, timeout: float, stop_after: int) -> list[Notice]:
        if len(self.looks) == 1:
            self.stop()
        return self.looks.pop(0)


def test_a_listener_asks_now_and_then_whether_it_would_still_hear(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that has vanished is as silent as a quiet queue: without an answer it would be believed in for hours."""
    monkeypatch.setattr(clock, "monotonic", itertools.count(0.0, 20.0).__next__)
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    way: Any = Way([[], [Notice("0:a")], [], []], listener.stopping.set)
    listener.serve(way)
    assert 2 <= way.asked <= 4
    assert claimer.hints.pairs == {("a", 0)}
    assert not claimer.listening.is_set()


def test_a_listener_never_asks_while_notifications_arrive(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the answer come all that the server has for it, however many: none of them could be left."""
    monkeypatch.setattr(clock, "monotonic", itertools.count(0.0, 20.0).__next__)
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    way: Any = Way([[Notice("0:a")] * 3 for _ in range(9)], listener.stopping.set)
    listener.serve(way)
    assert way.asked == 1, "to listen at all"


def test_behind_a_transaction_pooler_nothing_can_be_heard(claimer: Claimer) -> None:
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    way: Any = Way([], listener.stopping.set)
    way.pooled = True
    listener.serve(way)
    assert (listener.stopping.is_set(), way.asked) == (True, 0)


def test_a_claim_that_only_we_cannot_read_is_given_back_before_fewer_are_claimed(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has claimed them: left alone they would all be charged when the lease runs out."""
    ledger = Ledger(monkeypatch)
    taken: list[int] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        taken.append(limit)
        ledger.jobs = list(range(limit))
        raise psycopg.DataError("timestamp too small (before year 1)")

    taking(monkeypatch, take)
    parked: list[list[int]] = []

    def park(db: Any, job_id: int, reason: str, fingerprints: Any) -> list[int]:
        parked.append(list(ledger.jobs))
        return [job_id]

    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: 7)
    taking_one(monkeypatch, lambda job_id: take([], 1))
    monkeypatch.setattr(claiming, "park_unclaimable", park)
    assert claimer._claim(DB, {False: 4})
    assert taken == [4, 2, 1, 1]
    assert parked == [[]], "all were free again when the one was parked"
    assert not claimer.busy


def test_a_pause_is_heard_of(claimer: Claimer) -> None:
    looked: list[bool] = []
    listener = Listener(lambda: DB, Heard(), claimer, lambda: looked.append(True), wake_up)
    listener._hand_on("pauses")
    assert looked == [True]
    assert (claimer.hints.pairs, claimer.notified) == (set(), 0)


def test_a_queue_that_goes_on_is_looked_at_at_once_and_one_that_is_paused_wakes_nobody(claimer: Claimer) -> None:
    claimer.hints.list_due = 99.0
    claimer.pause(frozenset({"a", "b"}))
    assert (claimer.notified, claimer.hints.list_due) == (0, 99.0)
    claimer.pause(frozenset({"b"}))
    assert (claimer.notified, claimer.hints.list_due) == (1, 0.0)


def test_with_very_many_queues_a_claimer_goes_on_until_it_has_scanned_all_of_them(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim scans some of them. A worker that leaves when it is idle may not leave after that."""
    everything = [(f"q{n}", 0) for n in range(3 * MOST_PAIRS)]
    monkeypatch.setattr(claiming, "list_pairs", lambda db: everything)
    scanned: set[str] = set()

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        scanned.update(pair.queue for pair in plan)
        return []

    taking(monkeypatch, take)
    claimer.request(5)
    for parts in (1, 2, 3):
        again = claimer._claim(DB, {False: 5})
        assert len(scanned) == parts * MOST_PAIRS
        assert (again, claimer.room.dry[False]) == (parts < 3, parts == 3)


def test_a_claim_that_has_waited_for_its_turn_is_as_old_as_its_statement(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other schemas were served before: its jobs may run for all of the lease, and where it began was not slow."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    db: Any = SimpleNamespace(sent_at=0.0)
    took: list[float] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        db.sent_at, now[0] = 109.0, 109.5
        return [claimed(1)]

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0)])
    claimer.frontier.learn([("a", 0)])
    monkeypatch.setattr(type(claimer.frontier), "saw", lambda self, *given: took.append(given[4]))
    claimer._claim(db, {False: 5})
    [message] = heard.of(Claimed)
    assert (message.asked_at, took) == (109.0, [0.5])
