"""Pausing queues and jobs by name: the row, the claims, the held jobs, their release, and wrong arguments."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_pgjobs import job as define
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance import unparking
from django_pgjobs.maintenance.unparking import expire_pauses, unpause
from django_pgjobs.models import Action, Job, QueueState
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.store import finalising
from django_pgjobs.store import pausing as stored_pauses
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import ReleasedJob
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import Background, RawDatabase, claim, job, patience, register, wait_until


def named(*values: object) -> None: ...


@pytest.fixture(autouse=True)
def known() -> Iterator[Any]:
    """The job that ``register`` registers, under a former name too."""
    with registry.isolated():
        yield define(name="test.job", aliases=("test.former",))(named)


def over(raw: RawDatabase) -> None:
    """Let the time of every pause pass."""
    raw.query("UPDATE pgjobs_queue_state SET until = statement_timestamp() - interval '1 ms'")


def hold(raw: RawDatabase, limit: int = 1000) -> list[int]:
    """Claim jobs and hold them, as a worker does that knows of the pause."""
    return finalising.hold_jobs(raw, claim(raw, limit).ends(reason="mail is down"))


# What is written


def test_a_pause_says_who_why_and_until_when(raw: RawDatabase) -> None:
    before = timezone.now()
    state = Queue("mail").pause(by="anna", reason="server moves", until=timedelta(hours=1))
    assert (state.kind, state.name, state.paused_by, state.reason) == ("queue", "mail", "anna", "server moves")
    assert state.until is not None
    assert abs(state.until - before - timedelta(hours=1)) < timedelta(seconds=patience(20))
    assert list(QueueState.objects.current()) == [state]
    assert stored_pauses.read_pauses(raw) == Pauses(frozenset({"mail"}))


def test_until_is_an_instant_or_a_time_from_the_databases_now(raw: RawDatabase) -> None:
    """X9: the database's clock."""
    instant = datetime(2070, 1, 1, tzinfo=UTC)
    assert Queue("a").pause(until=instant).until == instant
    Queue("b").pause(until=90)
    left = "SELECT extract(epoch FROM until - statement_timestamp())::float8 FROM pgjobs_queue_state WHERE name = 'b'"
    assert 90 - patience(20) < raw.value(left) <= 90
    assert Queue("c").pause().until is None


def test_pausing_again_replaces_the_words_and_not_the_beginning(raw: RawDatabase) -> None:
    first = Queue("mail").pause(by="anna", reason="one", until=60)
    again = Queue("mail").pause(by="bob", reason="two")
    assert (again.paused_at, again.paused_by, again.reason, again.until) == (first.paused_at, "bob", "two", None)
    over(raw)
    assert Queue("mail").pause().paused_at > first.paused_at, "the one before was over"


def test_a_pause_ends_by_resume_or_by_its_time(raw: RawDatabase) -> None:
    Queue("mail").pause()
    assert (Queue("mail").resume(), Queue("mail").resume()) == (True, False)
    Queue("mail").pause(until=60)
    over(raw)
    assert list(QueueState.objects.current()) == []
    assert not stored_pauses.read_pauses(raw)
    assert not Queue("mail").resume(), "it was over"
    Queue("mail").pause(until=60)
    Queue("other").pause()
    over(raw)
    raw.query("UPDATE pgjobs_queue_state SET until = NULL WHERE name = 'other'")
    expire_pauses(raw)
    assert QueueState.objects.count() == 2, "its jobs were not late while it lasted: it is kept for a day"
    raw.query("UPDATE pgjobs_queue_state SET until = until - interval '25 hours' WHERE name = 'mail'")
    expire_pauses(raw)
    assert [state.name for state in QueueState.objects.all()] == ["other"]


def test_former_names_of_a_job_are_paused_and_resumed_with_it(raw: RawDatabase, known: Any) -> None:
    assert known.pause(reason="no").name == "test.job"
    assert set(stored_pauses.read_pauses(raw).names) == {"test.job", "test.former"}
    assert pauses.resume("job", "test.former")
    assert not stored_pauses.read_pauses(raw)


def test_a_pause_waits_for_nobody_who_holds_a_job(raw: RawDatabase, other: RawDatabase) -> None:
    """An operator's long transaction on one job must not keep the queue running."""
    held, free = register(2, limit_key="k")
    raw.query("UPDATE pgjobs_job SET hold = NULL WHERE id = ANY (%s)", [[held, free]])
    other.lock(held)
    raw.query("SET lock_timeout = '1s'")
    assert [pause.name for pause in stored_pauses.pause(raw, "queue", ["default"], by="", reason="")] == ["default"]
    assert [job(each).hold for each in (held, free)] == [None, "limited"]


def test_a_pause_belongs_to_the_callers_transaction(raw: RawDatabase) -> None:
    with transaction.atomic():
        Queue("mail").pause()
        transaction.set_rollback(True)
    assert list(QueueState.objects.current()) == []


def test_asynchronous_twins(raw: RawDatabase, known: Any) -> None:
    async def both() -> list[Any]:
        await Queue("mail").apause()
        await known.apause()
        found = [state async for state in QueueState.objects.current()]
        await known.aresume()
        return [*found, await Queue("mail").aresume()]

    queue, former, now, resumed = async_to_sync(both)()
    assert [(s.kind, s.name) for s in (queue, former, now)] == [
        ("queue", "mail"), ("job", "test.former"), ("job", "test.job"),
    ]  # fmt: skip
    assert resumed
    assert list(QueueState.objects.current()) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: pauses.pause("queue", "no good"), "no queue 'no good'"),
        (lambda: pauses.pause("queue", ""), "no queue ''"),
        (lambda: pauses.pause("job", "test.jop"), "did you mean 'test.job'"),
        (lambda: Queue("mail").pause(until=0), "a time from now"),
        (lambda: Queue("mail").pause(until=cast("Any", "tomorrow")), "a time from now"),
        (lambda: Queue("mail").pause(until=True), "a time from now"),
        (lambda: Queue("mail").pause(until=float("nan")), "a time from now"),
        (lambda: Queue("mail").pause(until=-timedelta(1)), "a time from now"),
        (lambda: Queue("mail").pause(until=1e12), "at most ten years"),
        (lambda: Queue("mail").pause(until=datetime(2070, 1, 1)), "aware"),
        (lambda: Queue("mail").pause(until=datetime(2001, 1, 1, tzinfo=UTC)), "is in the past"),
        (lambda: Queue("mail").pause(reason="x" * 501), "500 characters"),
        (lambda: Queue("mail").pause(by="a\0b"), "NUL"),
    ],
)
def test_what_is_wrong_is_told_and_pauses_nothing(raw: RawDatabase, settings: Any, wrong: Any, words: str) -> None:
    settings.USE_TZ = True
    with pytest.raises(InvalidJob, match=words):
        wrong()
    assert not QueueState.objects.exists()


def test_a_reason_of_none_is_an_empty_one(raw: RawDatabase) -> None:
    """As for every other action, ``cancel(reason=None)`` among them."""
    assert Queue("mail").pause(reason=cast("Any", None)).reason == ""
    assert Action.objects.get(verb="pause").reason == ""


def test_a_queue_that_the_settings_do_not_list_is_refused(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {**getattr(settings, "PGJOBS", {}), "QUEUES": ["default", "mail"]}
    with pytest.raises(InvalidJob, match="no queue 'mial'"):
        pauses.pause("queue", "mial")


def test_a_queue_shows_its_own_pause(raw: RawDatabase) -> None:
    mail: Any = Queue("mail")
    assert mail.paused is None
    Queue("other").pause()
    pauses.pause("job", "test.job")
    assert mail.paused is None
    state = mail.pause(by="anna")
    assert (mail.paused, mail.status().pause) == (state, state)
    over_at_once = mail.pause(until=60)
    assert mail.paused == over_at_once
    over(raw)
    assert (mail.paused, mail.status().pause) == (None, None)


def test_why_a_job_may_not_start(raw: RawDatabase) -> None:
    Queue("default").pause(reason="one")
    pauses.pause("job", "test.job", reason="two")
    Queue("other").pause()
    assert [state.reason for state in pauses.pauses_of("default", "test.job")] == ["one", "two"]
    assert pauses.pauses_of("elsewhere", "test.unknown") == []


# What waits for a limit


def test_jobs_that_a_limit_has_let_in_give_their_places_back(raw: RawDatabase) -> None:
    """What waits in a paused queue must not keep others out of the limit; what runs, or only ends, keeps its place."""
    ids = register(5)
    elsewhere = register(queue="mail")
    raw.query("UPDATE pgjobs_job SET limit_key = 'k' WHERE id <> %s", [ids[1]])
    running = claim(raw).ids[0]
    raw.query("UPDATE pgjobs_job SET ending = 'cancelled' WHERE id = %s", [ids[4]])
    Queue("default").pause()
    assert running == ids[0]
    assert [job(i).hold for i in (*ids, *elsewhere)] == [None, None, "limited", "limited", None, None]


def test_the_pausing_statement_does_not_read_the_queue(raw: RawDatabase) -> None:
    """However many are ready: admitted jobs have their own index."""
    register(3000)
    raw.query("ANALYZE pgjobs_job")
    raw.query("SET plan_cache_mode = force_custom_plan")
    found = raw.query(
        "EXPLAIN SELECT id FROM pgjobs_job WHERE queue = ANY (ARRAY['default']) AND limit_key IS NOT NULL "
        "AND hold IS NULL AND finished_at IS NULL AND claim_id IS NULL AND ending IS NULL"
    )
    assert "pgjobs_job_admitted" in str(found)


# Held by name


def test_a_held_job_waits_uncharged_and_goes_on(raw: RawDatabase) -> None:
    ids = register(3)
    pauses.pause("job", "test.job")
    assert sorted(hold(raw)) == ids
    row = job(ids[0])
    assert (row.state, row.hold_reason, row.attempt, row.claim_id, row.overdue_at) == (
        "paused", "mail is down", 0, None, None,
    )  # fmt: skip
    assert claim(raw, 10).ids == [], "each is claimed once at most"
    assert unpause(raw) == 0
    pauses.resume("job", "test.job")
    assert unpause(raw) == 3
    assert (job(ids[0]).state, job(ids[0]).hold_reason) == ("ready", "")
    assert sorted(claim(raw, 10).ids) == ids


def test_held_jobs_go_on_when_the_time_of_the_pause_has_come(raw: RawDatabase) -> None:
    register(2)
    pauses.pause("job", "test.job", until=60)
    hold(raw)
    assert unpause(raw) == 0
    over(raw)
    assert unpause(raw) == 2


def test_what_was_held_a_moment_too_late_goes_on_all_the_same(raw: RawDatabase) -> None:
    """A worker that had not heard of the resume: nothing is stranded."""
    ids = register()
    assert hold(raw) == ids
    assert unpause(raw) == 1


def test_a_limited_job_asks_to_be_let_in_again(raw: RawDatabase) -> None:
    ids = register(2)
    hold(raw)
    raw.query("UPDATE pgjobs_job SET limit_key = 'k' WHERE id = %s", [ids[0]])
    unpause(raw)
    assert [job(i).hold for i in ids] == ["limited", None]


def test_names_that_are_still_paused_cost_no_look_at_their_jobs(raw: RawDatabase) -> None:
    """Each second, whatever is held: one index probe a name."""
    register(2000)
    register(3, name="other.job")
    hold(raw, 3000)
    pauses.pause("job", "test.job")
    raw.query("VACUUM (ANALYZE) pgjobs_job")
    assert unpause(raw) == 3
    raw.query("SELECT pg_stat_force_next_flush()")
    fetched = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'pgjobs_job_held'"
    before = raw.value(fetched)
    assert unpause(raw) == 0
    raw.query("SELECT pg_stat_force_next_flush()")
    assert raw.value(fetched) - before < 100


def test_many_go_on_in_batches_and_no_rescue_waits_for_all_of_them(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W31: no giant transaction; and several workers share them."""
    monkeypatch.setattr(unparking, "BATCH", 10)
    register(35)
    hold(raw, 100)
    seen: list[int] = []
    whole = stored_pauses.unpause_jobs

    def counted(db: Database, *, limit: int) -> list[ReleasedJob]:
        seen.append(limit)
        return whole(db, limit=limit)

    monkeypatch.setattr(stored_pauses, "unpause_jobs", counted)
    assert unpause(raw) == 35
    assert seen == [10] * 4
    monkeypatch.setattr(unparking, "AGAIN_SECONDS", -1.0)
    assert unpause(raw) == 0, "out of time"


def test_several_let_them_go_at_once(raw: RawDatabase, db_connection: Any, background: Background) -> None:
    ids = register(500)
    hold(raw, 500)
    done = [asked.result(patience(20)) for asked in [background(unpause, db_connection()) for _ in range(4)]]
    assert sum(done) == 500
    assert sorted(claim(raw, 1000).ids) == ids


@pytest.mark.parametrize("kind", ["cancel", "abandon", "retry", "release", "reschedule"])
def test_steering_of_a_paused_job(raw: RawDatabase, kind: str) -> None:
    """A held job is unclaimed: it can be cancelled, given up and moved; there is nothing to retry or release."""
    ids = register()
    pauses.pause("job", "test.job")
    hold(raw)
    options: dict[str, Any] = {"delay": 60} if kind == "reschedule" else {}
    steered = getattr(Job.objects.filter(pk__in=ids), kind)(**options)
    left = {"cancel": "cancelled", "abandon": "abandoned"}.get(kind, "paused")
    assert job(ids[0]).state == left
    if kind in ("retry", "release"):
        assert (steered.changed, steered.skipped) == (0, {"paused": 1})
    else:
        assert (steered.changed, steered.skipped) == (1, {})


def test_a_callback_of_a_paused_job_waits_as_well(raw: RawDatabase) -> None:
    """No code of it starts; its start is not counted either."""
    ids = register()
    raw.query("UPDATE pgjobs_job SET ending = 'abandoned', attempt = 2 WHERE id = ANY (%s)", [ids])
    hold(raw)
    row = job(ids[0])
    assert (row.state, row.ending, row.attempt, row.ending_attempt) == ("paused", "abandoned", 2, 0)
    unpause(raw)
    assert claim(raw).jobs[0].ending == "abandoned"


def test_a_job_that_was_cancelled_after_its_claim_is_not_held(raw: RawDatabase) -> None:
    """A54: it must not go back into the queue; its worker ends it instead."""
    register()
    claimed = claim(raw)
    Job.objects.filter(pk__in=claimed.ids).cancel()
    assert finalising.hold_jobs(raw, claimed.ends(reason="x")) == []
    assert job(claimed.ids[0]).state == "running"


def test_run_jobs_leaves_alone_what_is_paused(raw: RawDatabase) -> None:
    """As a worker would."""
    ids = register(2) + register(queue="mail")
    Queue("default").pause()
    assert run_jobs().ran == ids[2:]
    Queue("default").resume()
    pauses.pause("job", "test.job")
    assert run_jobs().ran == []
    pauses.resume("job", "test.job")
    assert run_jobs().ran == ids[:2]


def test_a_pause_and_its_end_are_heard_of_at_the_commit(raw: RawDatabase, other: RawDatabase) -> None:
    raw.query("LISTEN pgjobs")
    Queue("mail").pause()
    Queue("mail").resume()
    Queue("mail").resume()
    wait_until(lambda: raw.query("SELECT 1"), 5, "an answer")
    heard = [notice.payload for notice in raw.raw.notifies(timeout=1.0)]
    assert heard == ["pauses", "pauses"], "nothing is told of what was not paused"


def test_the_words_of_a_held_job(raw: RawDatabase) -> None:
    pauses.pause("job", "test.job", by="anna", reason="no")
    assert stored_pauses.read_pauses(raw).names["test.job"] == "Jobs of this name are paused by anna: no"
    pauses.pause("job", "test.job")
    assert stored_pauses.read_pauses(raw).names["test.job"] == "Jobs of this name are paused."
