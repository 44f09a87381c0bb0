"""When the claim thread claims, what it parks, and that nothing it takes is left to nobody."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.store import statements as store
from django_pgjobs.store.sqlstates import is_data_trouble
from django_pgjobs.store.statements import ClaimedJob, Pair
from django_pgjobs.worker.threads import claimer as claiming
from django_pgjobs.worker.threads.claim_options import ClaimOptions
from django_pgjobs.worker.threads.claimer import DEAF_POLL_SECONDS, Claimer
from django_pgjobs.worker.threads.frontier import BEGINNING, Frontier
from django_pgjobs.worker.threads.inbox_messages import Claimed, Idle
from django_pgjobs.worker.threads.listener import Listener
from django_pgjobs.worker.threads.ready_hints import MOST_HINTS
from tests.unit.test_worker_finaliser import Heard
from tests.unit.worker_fakes import DUE, claimed

DB: Any = object()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def claimer(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Claimer:
    """It knows queues a and b at one priority."""
    options = ClaimOptions(
        UUID(int=1), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
    )
    claimer = Claimer(lambda: DB, heard, Frontier(), options)
    monkeypatch.setattr(store, "list_pairs", lambda db: [("a", 0), ("b", 0)])
    monkeypatch.setattr(store, "next_due", lambda db, pairs: None)
    return claimer


def taking(monkeypatch: pytest.MonkeyPatch, take: Any) -> None:
    """Of the line of threads, as all have that know no ``async def`` job."""

    def claim_lines(db: Any, lines: dict[bool, store.Line], names: Any, **_: Any) -> store.ClaimReply:
        return store.ClaimReply(take(list(lines[False].pairs), lines[False].limit), None)

    monkeypatch.setattr(store, "claim_lines", claim_lines)


def taking_one(monkeypatch: pytest.MonkeyPatch, take: Any) -> None:
    monkeypatch.setattr(store, "claim_one", lambda db, job_id, **_: take(job_id))


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


TOO_LARGE = psycopg.errors.NumericValueOutOfRange("interval out of range")


def refusing(plan: list[Pair], limit: int) -> list[ClaimedJob]:
    raise TOO_LARGE


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
    monkeypatch.setattr(store, "next_claimable", lambda db, plan, **_: {"a": 7, "b": 8}[plan[0].queue])
    taking_one(monkeypatch, lambda job_id: refusing([], 1))

    def park(db: Any, job_id: int, *_: Any) -> list[int]:
        parked.append(job_id)
        return [job_id]

    monkeypatch.setattr(store, "park_unclaimable", park)
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
    monkeypatch.setattr(store, "next_claimable", lambda db, plan, **_: 9)
    taking_one(monkeypatch, lambda job_id: [claimed(job_id)])
    monkeypatch.setattr(store, "park_unclaimable", lambda *_: pytest.fail("parked"))
    assert claimer._claim(DB, {False: 1})
    [message] = heard.of(Claimed)
    assert ([job.id for job in message.jobs], claimer.room.unadopted) == ([9], {False: 1})
    assert claimer.unconfirmed is None


def test_nothing_is_parked_when_no_row_is_left_that_fails(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, refusing)
    monkeypatch.setattr(store, "next_claimable", lambda db, plan, **_: None)
    monkeypatch.setattr(store, "park_unclaimable", lambda *_: pytest.fail("parked"))
    assert claimer._claim(DB, {False: 1})
    assert not claimer.busy


def test_a_worker_that_drains_claims_no_row_to_learn_whether_it_fails(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_claimable(db: Any, plan: list[Pair], **_: Any) -> int:
        claimer.halt()
        return 9

    taking(monkeypatch, refusing)
    monkeypatch.setattr(store, "next_claimable", next_claimable)
    taking_one(monkeypatch, lambda job_id: pytest.fail("claimed"))
    claimer._claim(DB, {False: 1})
    assert not claimer.busy


def test_other_trouble_parks_nothing(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.errors.InsufficientPrivilege("permission denied")

    taking(monkeypatch, take)
    monkeypatch.setattr(store, "park_unclaimable", lambda *_: pytest.fail("parked"))
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
    monkeypatch.setattr(store, "list_pairs", lambda db: [("a", 0)])
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
    monkeypatch.setattr(store, "list_pairs", canceled)
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
        monkeypatch.setattr(store, "next_due", lambda db, pairs, due=due: due)
        claimer.frontier.reaches["a", 0].scan_due = scan_due
        claimer._rest(DB, 0)
    assert slept == [DEAF_POLL_SECONDS, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(("known_until", "expected"), [(5.0, 10.7), (99.0, 99.0)])
def test_what_is_heard_while_a_job_is_waited_for_is_claimed_before_the_list_of_pairs_is_read(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, known_until: float, expected: float
) -> None:
    """And one that is known for longer is not read sooner for it."""
    monkeypatch.setattr(clock, "monotonic", lambda: 10.0)
    monkeypatch.setattr(store, "next_due", lambda db, pairs: 0.5)
    claimer.frontier.learn([("a", 0)])
    claimer.frontier.reaches["a", 0].scanned = 9.0
    claimer.next_pairs = known_until

    def sleep(seconds: float, notified: int) -> bool:
        assert seconds == 0.5
        claimer.settles_at = 10.7
        return True

    monkeypatch.setattr(claimer, "_sleep", sleep)
    claimer._rest(DB, 0)
    assert claimer.next_pairs == expected


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
    assert slept == [pytest.approx(claiming.POLL_AGAIN_SECONDS - 0.002)]
    assert claimer.frontier.reaches["a", 0].near_due < 0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, claimer.notified)
    assert [type(message) for message in heard.posts] == [Claimed, Idle]
    assert slept[1:] == [5.0]


def test_while_a_producer_is_busy_the_claimer_looks_again_and_again(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: what is registered meanwhile comes without a notification. Only behind the last look is the worker idle."""
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
    assert looks[:-1] == [pytest.approx(n * claiming.POLL_AGAIN_SECONDS) for n in range(len(looks) - 1)]
    assert looks[-1] == pytest.approx(claiming.BUSY_SECONDS)


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
    monkeypatch.setattr(store, "list_pairs", list_pairs)
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


# Lines of two colours


class Lines:
    """A store of jobs of two colours; ``asked`` keeps the limits of each claim."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ready: int) -> None:
        self.ready = {False: ready.get("plain", 0), True: ready.get("on_loop", 0)}
        self.asked: list[dict[bool, int]] = []
        self.ids = itertools.count(1)
        monkeypatch.setattr(store, "claim_lines", self.claim)

    def claim(
        self, db: Any, lines: dict[bool, store.Line], names: Any, *, most: int | None, **_: Any
    ) -> store.ClaimReply:
        self.asked.append({is_async: line.limit for is_async, line in lines.items()})
        jobs: list[ClaimedJob] = []
        for is_async, line in lines.items():
            count = min(self.ready[is_async], line.limit)
            count = count if most is None else min(count, most - len(jobs))
            self.ready[is_async] -= count
            name = "on.loop" if is_async else "plain"
            jobs += [claimed(next(self.ids), name=name, queue="a") for _ in range(count)]
        return store.ClaimReply(jobs, DUE)


@pytest.fixture
def coloured(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Claimer:
    """A claimer whose code has an ``async def`` job."""
    options = ClaimOptions(
        UUID(int=1), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
    )
    claimer = Claimer(lambda: DB, heard, Frontier(frozenset("ab")), options, frozenset({"on.loop"}))
    monkeypatch.setattr(store, "list_pairs", lambda db: [("a", 0), ("c", 0)])
    monkeypatch.setattr(store, "next_due", lambda db, pairs: None)
    claimer.listening.set()
    return claimer


def claim_as_wanted(claimer: Claimer) -> bool:
    wanted, _ = claimer._until_wanted()
    return claimer._claim(DB, wanted)


def test_each_colour_is_asked_for_by_its_own_room(coloured: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """B10: a loop that is full keeps nobody from threads, whatever stands in front."""
    lines = Lines(monkeypatch, plain=3, on_loop=9)
    coloured.request(2, 4)
    assert claim_as_wanted(coloured), "it waits until there is room again"
    coloured.request(2, 4)
    assert coloured.room.wanted == {False: 0, True: 0}, "main speaks of room that jobs on their way to it take"
    coloured.adopted([claimed(1), claimed(2), *(claimed(id, name="on.loop") for id in range(3, 7))])
    coloured.request(2, 0)
    claim_as_wanted(coloured)
    assert lines.asked == [{False: 2, True: 4}, {False: 2}]
    assert lines.ready == {False: 0, True: 5}
    assert [set(frontier.reaches) for frontier in coloured.lines.values()] == [{("a", 0)}] * 2, "of queues it serves"


def test_a_callback_takes_up_room_in_threads_whatever_its_job_is(coloured: Claimer) -> None:
    coloured.adopted([claimed(1, name="on.loop", ending="abandoned"), claimed(2, name="on.loop"), claimed(3)])
    assert coloured.room.unadopted == {False: -2, True: -1}


def test_room_for_what_was_left_ends_the_rest_and_room_for_what_is_not_there_does_not(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand idle; each place on the loop that comes free is filled at once, and nobody asks in vain."""
    Lines(monkeypatch, on_loop=9)
    coloured.request(2, 4)
    assert not claim_as_wanted(coloured), "for threads there is nothing"
    assert not coloured.room.may_find_more()
    coloured.adopted([claimed(id, name="on.loop") for id in range(4)])
    coloured.request(2, 1)
    assert coloured.room.may_find_more()
    coloured.request(2, 0)
    assert not coloured.room.may_find_more()


@pytest.mark.parametrize(
    ("dry", "before", "now", "woken"),
    [
        ((False, False), (0, 0), (1, 0), True),
        ((True, True), (0, 0), (1, 0), True),  # it sleeps without an end while there is no room
        ((True, False), (2, 0), (2, 1), True),
        ((True, True), (2, 0), (3, 0), False),
        ((False, False), (0, 0), (0, 0), False),
    ],
)
def test_room_wakes_the_thread_that_had_none_or_may_find_something_for_it(
    coloured: Claimer,
    monkeypatch: pytest.MonkeyPatch,
    dry: tuple[bool, bool],
    before: tuple[int, int],
    now: tuple[int, int],
    woken: bool,
) -> None:
    coloured.request(*before)
    coloured.room.dry = dict(zip((False, True), dry, strict=True))
    wakes: list[None] = []
    monkeypatch.setattr(coloured.wake, "notify_all", lambda: wakes.append(None))
    coloured.request(*now)
    assert bool(wakes) is woken


def test_what_was_not_asked_about_may_be_there_as_soon_as_there_is_room(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in meanwhile is heard of while nobody can take it."""
    Lines(monkeypatch)
    coloured.request(2, 4)
    assert not claim_as_wanted(coloured)
    coloured.request(0, 4)
    assert not claim_as_wanted(coloured)
    coloured.request(1, 4)
    assert coloured.room.may_find_more()


def test_idle_is_said_only_when_both_colours_were_looked_at(
    coloured: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coloured, "_sleep", lambda seconds, notified: False)
    Lines(monkeypatch)
    coloured.request(2, 0)
    claim_as_wanted(coloured)
    coloured._rest(DB, 0)
    assert heard.posts == []
    coloured.request(2, 4)
    claim_as_wanted(coloured)
    coloured._rest(DB, 0)
    assert [type(message) for message in heard.posts] == [Idle]


def test_no_more_are_claimed_of_both_colours_than_are_to_be_run(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(monkeypatch, plain=2, on_loop=9)
    coloured.request(4, 4, most=3)
    claim_as_wanted(coloured)
    assert lines.ready == {False: 0, True: 8}
    assert (coloured.room.most, coloured.room.is_free()) == (0, False)
    coloured.request(4, 4, most=3)
    assert not coloured.room.is_free(), "three are on their way to main"


def test_the_row_that_makes_a_claim_of_two_lines_fail_is_looked_for_in_both(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dict[bool, int]] = []

    def claim_lines(db: Any, lines: dict[bool, store.Line], names: Any, **_: Any) -> store.ClaimReply:
        tried.append({is_async: line.limit for is_async, line in lines.items()})
        raise TOO_LARGE

    monkeypatch.setattr(store, "claim_lines", claim_lines)
    monkeypatch.setattr(store, "next_claimable", lambda db, plan, *, is_async, async_names: 8 if is_async else 7)
    taking_one(monkeypatch, lambda job_id: refusing([], 1) if job_id == 8 else [claimed(job_id)])
    parked: list[int] = []

    def park(db: Any, job_id: int, *_: Any) -> list[int]:
        parked.append(job_id)
        return [job_id]

    monkeypatch.setattr(store, "park_unclaimable", park)
    coloured._claim(DB, {False: 1, True: 3})
    assert tried == [{False: 1, True: 3}, {False: 1, True: 1}]
    assert (parked, coloured.room.unadopted) == ([8], {False: 1, True: 0})


# Claims whose answer was lost


class Ledger:
    """What was claimed, as the store tells it; a test lets a claim appear late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[int] = []
        self.locked: set[int] = set()
        self.reads = 0
        monkeypatch.setattr(store, "read_claim", self.read)
        monkeypatch.setattr(store, "release_jobs", self.release)
        self.told: list[tuple[set[tuple[str, int]], bool]] = []
        self.deleted: list[str] = []
        monkeypatch.setattr(store, "delete_claims", lambda db, claims: self.deleted.extend(claims))
        monkeypatch.setattr(store, "notify_queues", lambda db, pairs, behind: self.told.append((pairs, behind)))

    def read(self, db: Any, claim_id: UUID) -> list[int]:
        self.reads += 1
        return list(self.jobs)

    def release(self, db: Any, ends: Any, author: Any) -> list[store.Released]:
        free = [end.id for end in ends if end.id not in self.locked]
        self.jobs = [id for id in self.jobs if id in self.locked]
        return [store.Released(id, "a", 0) for id in free]


def test_a_claim_that_its_server_process_commits_late_is_given_back_too(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§3 claim: the way broke, the first look was too early; looked up again, it costs no attempt."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    ledger = Ledger(monkeypatch)
    claimer.unconfirmed = UUID(int=9)
    claimer._resolve(DB, UUID(int=9))
    assert not claimer.busy
    assert ledger.reads == 1
    claimer.check_doubts(DB)
    assert ledger.reads == 1, "not at once again"
    now[0] += 1.0
    ledger.jobs, ledger.locked = [1, 2], {2}
    claimer.check_doubts(DB)
    assert (ledger.jobs, claimer.hints.pairs, claimer.hints.released) == ([2], {("a", 0)}, {"a"})
    assert ledger.told == [({("a", 0)}, True)], "this worker may be leaving"
    now[0] += 2.0
    ledger.locked = set()
    claimer.check_doubts(DB)
    assert (ledger.jobs, claimer.in_doubt.doubts) == ([], [])
    assert ledger.deleted[-1] == str(UUID(int=9)), "nobody else would delete its ledger row before the lease is over"


def test_a_claim_that_never_was_is_looked_for_until_its_lease_is_over(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever more seldom, and once more when the worker leaves."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    ledger = Ledger(monkeypatch)
    claimer._resolve(DB, UUID(int=9))
    while claimer.in_doubt.doubts and now[0] < 1000:
        claimer.check_doubts(DB)
        now[0] += 0.25
    assert now[0] >= 130
    assert 5 <= ledger.reads <= 12
    claimer._resolve(DB, UUID(int=9))
    before = ledger.reads
    claimer.halt()
    claimer.check_doubts(DB)
    assert ledger.reads == before + 1


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
    Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)._hand_on(Notice(payload))  # type: ignore[arg-type]
    assert (claimer.hints.pairs, claimer.notified) == (set(), 0)


def test_an_admitter_hears_of_what_a_limit_holds_and_the_claim_thread_does_not(claimer: Claimer) -> None:
    stirred: list[int] = []
    claimer.frontier.excluded = frozenset({"excluded"})
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, lambda: stirred.append(1))
    for payload in ("limited:a", "limited:", "limited:excluded", "limited:a b", "Limited:a"):
        listener._hand_on(Notice(payload))  # type: ignore[arg-type]
    assert (stirred, claimer.hints.pairs) == ([1], set())


def test_of_what_was_given_back_the_next_claim_hears(claimer: Claimer) -> None:
    claimer.frontier.excluded = frozenset({"excluded"})
    claimer.frontier.learn([("a", 0), ("b", 0)])
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    for payload in ("behind:a", "behind:", "behind:excluded", "behind:a b", "Behind:b"):
        listener._hand_on(Notice(payload))  # type: ignore[arg-type]
    assert (claimer.hints.released, claimer.notified, claimer.hints.pairs) == ({"a"}, 1, set())
    claimer._learn()
    assert [reach.behind for reach in claimer.frontier.reaches.values()] == [True, False]
    assert not claimer.hints.released


def test_that_a_producer_is_busy_is_heard_for_queues_that_are_served(claimer: Claimer) -> None:
    claimer.frontier.excluded = frozenset({"excluded"})
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    for payload in ("busy:excluded", "busy:", "busy:a b", "Busy:a"):
        listener._hand_on(Notice(payload))  # type: ignore[arg-type]
    assert claimer.settles_at == 0.0
    listener._hand_on(Notice("busy:a"))  # type: ignore[arg-type]
    assert claimer.settles_at > clock.monotonic()
    assert claimer.hints.pairs == set()


@pytest.mark.parametrize(
    ("payload", "pair"), [("0:a", ("a", 0)), ("-100:a.b:c", ("a.b:c", -100)), ("100:x", ("x", 100))]
)
def test_a_registration_is_heard(claimer: Claimer, payload: str, pair: tuple[str, int]) -> None:
    Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)._hand_on(Notice(payload))  # type: ignore[arg-type]
    assert (claimer.hints.pairs, claimer.notified) == ({pair}, 1)


def test_names_without_end_are_not_kept_without_end(claimer: Claimer) -> None:
    """While every thread is busy nothing asks for what was heard; the list of queues has it all."""
    claimer.next_pairs = 99.0
    for number in range(MOST_HINTS + 5):
        claimer.wake_for((f"q{number}", 0))
        claimer.wake_for_released(f"q{number}")
    assert (len(claimer.hints.pairs), claimer.next_pairs, len(claimer.hints.released)) == (MOST_HINTS, 0.0, MOST_HINTS)
    claimer.frontier.learn([("last", 0)])
    claimer._learn()
    assert all(reach.behind for reach in claimer.frontier.reaches.values()), "one of those too many may be any"
    assert (claimer.hints.released_anywhere, claimer.hints.released) == (False, set())


def test_what_was_let_in_is_heard_of_and_looked_for_behind_the_frontier(claimer: Claimer) -> None:
    claimer.wake_for_admitted(("a", 0))
    assert (claimer.hints.pairs, claimer.hints.admitted, claimer.notified) == ({("a", 0)}, {("a", 0)}, 1)
    claimer._learn()
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
        self.asked = 0
        self.looks = looks
        self.stop = stop

    def fetch(self, name: str, params: Any) -> list[Any]:
        self.asked += 1
        return []

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

    monkeypatch.setattr(store, "next_claimable", lambda db, plan, **_: 7)
    taking_one(monkeypatch, lambda job_id: take([], 1))
    monkeypatch.setattr(store, "park_unclaimable", park)
    assert claimer._claim(DB, {False: 4})
    assert taken == [4, 2, 1, 1]
    assert parked == [[]], "all were free again when the one was parked"
    assert not claimer.busy


def test_a_pause_is_heard_of(claimer: Claimer) -> None:
    looked: list[bool] = []
    listener = Listener(lambda: DB, Heard(), claimer, lambda: looked.append(True), wake_up)
    listener._hand_on(Notice("pauses"))  # type: ignore[arg-type]
    assert looked == [True]
    assert (claimer.hints.pairs, claimer.notified) == (set(), 0)


def test_a_queue_that_goes_on_is_looked_at_at_once_and_one_that_is_paused_wakes_nobody(claimer: Claimer) -> None:
    claimer.next_pairs = 99.0
    claimer.pause(frozenset({"a", "b"}))
    assert (claimer.notified, claimer.next_pairs) == (0, 99.0)
    claimer.pause(frozenset({"b"}))
    assert (claimer.notified, claimer.next_pairs) == (1, 0.0)
