"""Limits that operators set in place of the code's: which numbers apply, what they count, and who may say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_pgjobs import Limit
from django_pgjobs import job as define
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.diagnosis import holdups
from django_pgjobs.diagnosis.problem import Limits
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.execution.admission import AdmissionScan
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.maintenance import unparking
from django_pgjobs.models import Action, Job, LimitOverride, QueueState
from django_pgjobs.models.keys import Admission
from django_pgjobs.queues import Queue, limits
from django_pgjobs.store import finalising, limiting, pausing
from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.finalising import End
from django_pgjobs.store.limiting import found_for, merged
from django_pgjobs.store.pausing import LimitInForce, Pauses
from django_pgjobs.values.built_in import OWN_QUEUE
from tests.db.limits_ground import admit, admitted_ids, blocked, end, entered, terms
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, from_the_beginning, job, register
from tests.plugins.sabotage import sabotage


def charge(customer: int = 0) -> None: ...


def import_file(customer: int = 0) -> None: ...


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with registry.isolated():
        define(name="test.job", aliases=("old.job",), limits=Limit(1, key="{customer}"))(import_file)
        define(name="shop.charge")(charge)
        yield


def definition(name: str) -> JobDefinition[..., Any]:
    found: Any = registry.get(name)
    return found  # type: ignore[no-any-return]


def override(kind: str, name: str = "test.job", **numbers: Any) -> LimitOverride:
    return limits.override(kind, "default" if kind == "queue" else name, **numbers)


def over(raw: RawDatabase) -> None:
    """Let all limits that are set end, as their instant passes."""
    raw.query("UPDATE pgjobs_limit SET until = statement_timestamp() - interval '1 ms'")


# Which numbers apply


OF = {"queue": "of_queue", "job": "of_job", "key": "of_key"}


@pytest.mark.parametrize("kind", OF)
def test_a_limit_applies_in_place_of_the_codes_until_it_is_restored(raw: RawDatabase, kind: str) -> None:
    blocked(20, "a")
    declared = terms(**{OF[kind]: Bounds(5)})
    override(kind, concurrency=2)
    assert entered(raw, declared) == 2
    override(kind, concurrency=7)
    assert entered(raw, declared) == 5
    override(kind, concurrency=3)
    assert entered(raw, declared) == 0
    assert limits.restore(kind, "default" if kind == "queue" else "test.job")
    end(raw, *admitted_ids()[:3])
    assert entered(raw, declared) == 1, "the code's five"


@pytest.mark.parametrize("kind", OF)
def test_a_limit_ends_by_the_databases_clock(raw: RawDatabase, kind: str) -> None:
    blocked(9, "a")
    override(kind, concurrency=1, until=timedelta(hours=1))
    assert entered(raw, terms(**{OF[kind]: Bounds(4)})) == 1
    over(raw)
    assert entered(raw, terms(**{OF[kind]: Bounds(4)})) == 3
    assert list(LimitOverride.objects.current()) == []


@pytest.mark.parametrize("kind", OF)
def test_a_limit_stands_where_the_code_has_none(raw: RawDatabase, kind: str) -> None:
    blocked(9, "a")
    override(kind, concurrency=2)
    assert entered(raw, terms()) == 2
    assert limits.restore(kind, "default" if kind == "queue" else "test.job")
    assert entered(raw, terms()) == 7


@pytest.mark.parametrize("kind", OF)
def test_numbers_that_are_not_set_are_the_codes(raw: RawDatabase, kind: str) -> None:
    blocked(20, "a")
    declared = terms(**{OF[kind]: Bounds(6, 4, 60.0)})
    override(kind, concurrency=5)
    assert entered(raw, declared) == 4, "the code's rate"
    override(kind, rate=10)
    assert entered(raw, declared) == 2, "the code's concurrency"
    override(kind, concurrency=12)
    assert entered(raw, declared) == 0, "the code's rate again: what is set replaces all that was"


def test_a_rate_has_its_own_period(raw: RawDatabase) -> None:
    blocked(20)
    override("job", rate=3, per=3600)
    assert entered(raw, terms(of_job=Bounds(None, 5, 0.1))) == 3
    raw.query("UPDATE pgjobs_admission SET admitted_at = admitted_at - interval '1 minute'")
    end(raw, *admitted_ids())
    assert entered(raw, terms(of_job=Bounds(None, 5, 0.1))) == 0, "the hour counts, not the code's tenth of a second"
    [kept] = Admission.objects.all()
    assert (kept.expires_at - kept.admitted_at).total_seconds() > 3600


def test_a_limit_of_a_job_holds_for_its_former_names_too(raw: RawDatabase) -> None:
    """A rename in code neither loses the limit nor lets old and new workers go by different numbers."""
    override("job", concurrency=2)
    assert [each.name for each in limits.current()] == ["old.job", "test.job"]
    blocked(5)
    assert entered(raw, terms()) == 2
    limits.restore("job", "old.job")
    assert list(limits.current()) == [], "any of its names restores all"
    limiting.override_limit(raw, "job", ["old.job"], Bounds(3), by="", reason="")
    assert entered(raw, terms(names=("test.job", "old.job"))) == 1, "set before the job was renamed"


def test_the_name_of_today_goes_before_a_former_one(raw: RawDatabase) -> None:
    blocked(9)
    limiting.override_limit(raw, "job", ["old.job"], Bounds(5), by="", reason="")
    limiting.override_limit(raw, "job", ["test.job"], Bounds(2), by="", reason="")
    assert entered(raw, terms(names=("test.job", "old.job"))) == 2


def test_the_limit_of_another_queue_or_job_changes_nothing(raw: RawDatabase) -> None:
    blocked(9, "a")
    Queue("mail").limit(1)
    definition("shop.charge").limit(1)
    assert entered(raw, terms(of_queue=Bounds(4))) == 4


@pytest.mark.parametrize("kind", OF)
def test_without_its_guard_a_limit_that_is_over_would_still_apply(
    raw: RawDatabase, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The red twin of what ends a limit."""
    blocked(9, "a")
    override(kind, concurrency=1)
    over(raw)
    sabotage(monkeypatch, "admit_jobs", "WHERE o.until IS NULL OR o.until > statement_timestamp()")
    assert entered(raw, terms(**{OF[kind]: Bounds(4)})) == 1


# Rates that are dated anew


@pytest.mark.parametrize("kind", OF)
def test_the_starts_of_a_rate_that_an_operator_has_set_are_dated_anew(raw: RawDatabase, kind: str) -> None:
    """No worker was free for longer than the window: what starts now counts now."""
    blocked(6, "a")
    override(kind, rate=2, per=10)
    scan = AdmissionScan(lambda queue: True, get_conf())
    assert scan.rates == []
    assert scan.learn(pausing.read_pauses(raw).limits)
    assert scan.turn(raw).jobs == 1, "one of its key at once, by the code"
    raw.query("UPDATE pgjobs_admission SET admitted_at = admitted_at - interval '1 hour'")
    scan.turn(raw)
    [(fresh,)] = raw.query("SELECT sum(starts) FROM pgjobs_admission WHERE admitted_at > now() - interval '1 minute'")
    assert fresh == 1


def test_a_rate_that_replaces_the_codes_dates_by_its_own_period(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"rate": 5, "per": 1}, "*": {"rate": 9, "per": 2}}}
    blocked(2, "a", name="shop.charge")
    scan = AdmissionScan(lambda queue: True, get_conf())
    assert scan.turn(raw).jobs == 2
    Queue("default").limit(rate=5, per=3600)
    raw.query("UPDATE pgjobs_admission SET admitted_at = admitted_at - interval '10 seconds'")
    scan.turn(raw)
    found = dict(raw.query("SELECT subject, max(expires_at - admitted_at) FROM pgjobs_admission GROUP BY 1"))
    assert found["queue:default"] >= timedelta(hours=1)
    assert set(found) == {"queue:default"}


def two_periods(raw: RawDatabase) -> tuple[float, float]:
    """A period and half of it, whose starts are dated to the same instant for the next minutes."""
    now = int(raw.value("SELECT extract(epoch FROM now())::bigint"))
    bin_ = next(each for each in range(10_000, 11_000) if now // each % 2 and each - now % each > 600)
    return 2000.0 * bin_, 1000.0 * bin_


def test_a_shorter_period_does_not_let_earlier_starts_be_forgotten(raw: RawDatabase) -> None:
    """An operator may set the longer one again, and it counts them."""
    longer, shorter = two_periods(raw)
    blocked(3)
    assert entered(raw, terms(of_queue=Bounds(None, 1, longer))) == 1
    before = Admission.objects.get()
    assert entered(raw, terms(of_queue=Bounds(None, 3, shorter))) == 2
    after = Admission.objects.get()
    assert (after.starts, after.expires_at - after.admitted_at) == (3, timedelta(seconds=longer))
    assert after.expires_at == before.expires_at
    assert entered(raw, terms(of_queue=Bounds(None, 3, longer))) == 0


def test_nor_do_starts_that_a_shorter_period_dates_anew(raw: RawDatabase) -> None:
    longer, shorter = two_periods(raw)
    blocked(3)
    assert entered(raw, terms(of_queue=Bounds(None, 2, longer))) == 2
    raw.query("UPDATE pgjobs_admission SET admitted_at = admitted_at - interval '1 hour', starts = 1")
    raw.query(
        "INSERT INTO pgjobs_admission (subject, admitted_at, expires_at, starts)"
        " SELECT subject, admitted_at + interval '1 hour', expires_at, 1 FROM pgjobs_admission"
    )
    assert entered(raw, terms(of_queue=Bounds(None, 2, shorter))) == 0
    after = Admission.objects.get()
    assert (after.starts, after.expires_at - after.admitted_at) == (2, timedelta(seconds=longer))


# What is counted


def held(raw: RawDatabase, *ids: int) -> None:
    """A worker that knows of the limit was about to start these."""
    claimed = claim(raw, 10)
    assert claimed.ids == sorted(ids)
    assert finalising.hold_jobs(raw, claimed.ends(outcome="limited")) == list(ids)


def test_a_job_that_no_limit_counted_is_held_uncharged_and_admitted(raw: RawDatabase) -> None:
    ids = register(3)
    Queue("default").limit(2)
    held(raw, *ids)
    assert {(job(each).state, job(each).limit_key, job(each).attempt, job(each).hold_reason) for each in ids} == {
        ("limited", "", 0, "")
    }
    assert entered(raw, terms()) == 2
    assert Queue("default").restore_limit()
    assert entered(raw, terms()) == 1, "the code has no limit: nothing is held any more"
    assert sorted(claim(raw, 10).ids) == ids


def test_a_job_that_is_retried_waits_for_a_slot_of_the_limit_that_was_set(raw: RawDatabase) -> None:
    """It is counted since, also if its code has no limit; without the limit it needs no slot."""
    ids = register(2)
    Queue("default").limit(1)
    held(raw, *ids)
    assert entered(raw, terms()) == 1
    failed = claim(raw, 10).ends(cause="failed", outcome="abandoned", failure=FAILURE)
    finalising.finalise_end(raw, failed, AUTHOR)
    assert entered(raw, terms()) == 1, "the slot is free again"
    assert Job.objects.filter(pk=ids[0]).retry().changed == 1
    assert (job(ids[0]).state, job(ids[0]).limit_key, entered(raw, terms())) == ("limited", "", 0)
    assert Queue("default").restore_limit()
    assert (entered(raw, terms()), sorted(claim(raw, 10).ids)) == (1, ids)


def test_a_paused_job_that_is_held_keeps_its_key(raw: RawDatabase) -> None:
    register(2)
    claimed = claim(raw, 2)
    assert len(finalising.hold_jobs(raw, claimed.ends(reason="by anna"))) == 2
    assert {(each.state, each.limit_key) for each in Job.objects.all()} == {("paused", None)}


def test_limited_and_paused_ends_are_held_each_its_way(raw: RawDatabase) -> None:
    first, second = register(2)
    ends = claim(raw, 2).ends()
    ends[1].outcome = "limited"
    assert finalising.hold_jobs(raw, ends) == [first, second]
    assert (job(first).state, job(second).state) == ("paused", "limited")


QUEUE_LIMIT = LimitInForce("queue", "default", 1, None, None)
JOB_LIMIT = LimitInForce("job", "test.job", 1, None, None)


@pytest.mark.parametrize(
    ("limit", "queue", "name", "key", "must"),
    [
        (QUEUE_LIMIT, "default", "test.job", None, True),
        (QUEUE_LIMIT, "default", "test.job", "", False),
        (QUEUE_LIMIT, "mail", "test.job", None, False),
        (QUEUE_LIMIT, "default", "pgjobs.undo", None, False),
        (JOB_LIMIT, "mail", "test.job", None, True),
        (JOB_LIMIT, "test.job", "other", None, False),
        (JOB_LIMIT._replace(kind="key"), "mail", "test.job", None, False),
    ],
)
def test_a_worker_counts_first_what_a_limit_of_its_queue_or_name_does_not_count_yet(
    limit: LimitInForce, queue: str, name: str, key: str | None, *, must: bool
) -> None:
    pauses = Pauses(limits=frozenset({limit}))
    assert pauses
    assert pauses.must_count(queue, name, key) == must
    assert not pauses.cover(queue, name)
    assert not Pauses().must_count(queue, name, key)


def test_workers_read_the_limits_with_the_pauses(raw: RawDatabase) -> None:
    Queue("mail").limit(3, rate=5, per=2)
    definition("test.job").limit(1, each_key=True)
    Queue("bulk").pause()
    definition("shop.charge").limit(4, until=60)
    read = pausing.read_pauses(raw)
    assert (read.queues, dict(read.names)) == (frozenset({"bulk"}), {})
    assert read.limits == {
        LimitInForce("queue", "mail", 3, 5, 2.0), LimitInForce("key", "test.job", 1, None, None),
        LimitInForce("key", "old.job", 1, None, None), LimitInForce("job", "shop.charge", 4, None, None),
    }  # fmt: skip
    over(raw)
    assert pausing.read_pauses(raw).limits == frozenset()


def running(raw: RawDatabase, count: int = 1, **fields: Any) -> list[int]:
    ids = register(count, **fields)
    queue = str(fields.get("queue", "default"))
    assert claim(raw, 10, from_the_beginning((queue, 0))).ids == ids
    return ids


@pytest.mark.parametrize("kind", ["queue", "job"])
def test_what_runs_already_is_counted_and_not_stopped(raw: RawDatabase, kind: str) -> None:
    """None is killed, and none is admitted until fewer run."""
    ids = running(raw, 3)
    blocked(2)
    override(kind, concurrency=2)
    scan = AdmissionScan(lambda queue: True, get_conf())
    scan.learn(pausing.read_pauses(raw).limits)
    assert scan.turn(raw).jobs == 0
    assert {(job(each).state, job(each).limit_key) for each in ids} == {("running", "")}
    ends = [End(each, str(job(each).claim_id)) for each in ids]
    failed = [replace(ends[0], seconds=0.1, cause="failed", failure=FAILURE)]
    assert finalising.finalise_retry(raw, failed, AUTHOR) != []
    assert job(ids[0]).state == "limited", "its next attempt asks for a slot"
    assert scan.turn(raw).jobs == 0
    finalising.finalise_success(raw, ends[1:2], AUTHOR)
    assert scan.turn(raw).jobs == 1


def test_counting_what_runs_leaves_everything_else_alone(raw: RawDatabase, other: RawDatabase) -> None:
    Queue("default").limit(2)
    [elsewhere] = running(raw, queue="mail")
    [own] = running(raw, name="pgjobs.undo")
    [ended], [calls], [locked], [waits] = (running(raw) for _ in range(4))
    finalising.finalise_success(raw, [End(ended, str(job(ended).claim_id))], AUTHOR)
    [limited] = running(raw)
    raw.query("UPDATE pgjobs_job SET ending = 'cancelled' WHERE id = %s", [calls])
    raw.query("UPDATE pgjobs_job SET claim_id = NULL WHERE id = %s", [waits])
    raw.query("UPDATE pgjobs_job SET limit_key = 'k' WHERE id = %s", [limited])
    other.lock(locked)
    assert limiting.limit_running(raw, registry.names(), limit=10) == 0
    other.rollback()
    assert limiting.limit_running(raw, registry.names(), limit=10) == 1
    assert limiting.limit_running(raw, registry.names(), limit=10) == 0
    keys = {each.pk: each.limit_key for each in Job.objects.all()}
    assert keys == {elsewhere: None, own: None, ended: None, calls: None, waits: None, locked: "", limited: "k"}


TWINS: dict[str, Callable[[RawDatabase], object]] = {
    "AND j.limit_key IS NOT DISTINCT FROM NULL": lambda raw: raw.query("UPDATE pgjobs_job SET limit_key = 'k'"),
    "AND j.finished_at IS NOT DISTINCT FROM NULL": lambda raw: raw.query(
        "UPDATE pgjobs_job SET finished_at = now(), outcome = 'succeeded'"
    ),
    "AND j.ending IS NULL": lambda raw: raw.query("UPDATE pgjobs_job SET ending = 'cancelled'"),
    "AND j.name = ANY (%(names)s::text[])": lambda raw: raw.query("UPDATE pgjobs_job SET name = 'known.to_executors'"),
    "WHERE o.kind IN ('queue', 'job') AND (o.until IS NULL OR o.until > statement_timestamp())": over,
}


@pytest.mark.parametrize("line", TWINS)
def test_each_guard_of_counting_is_needed(raw: RawDatabase, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Queue("default").limit(2)
    running(raw)
    TWINS[line](raw)
    assert limiting.limit_running(raw, registry.names(), limit=10) == 0
    sabotage(monkeypatch, "limit_running", line)
    assert limiting.limit_running(raw, registry.names(), limit=10) == 1


def test_a_claim_that_is_not_the_jobs_any_more_counts_nothing(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue("default").limit(2)
    running(raw)
    raw.query("UPDATE pgjobs_job SET claim_id = NULL")
    assert limiting.limit_running(raw, registry.names(), limit=10) == 0
    sabotage(monkeypatch, "limit_running", "WHERE j.claim_id = claimed.claim_id", "WHERE true")
    assert limiting.limit_running(raw, registry.names(), limit=10) == 1


def test_more_than_a_turn_counts_are_counted_by_the_next(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgjobs.execution.admission.BATCH", 2)
    running(raw, 3)
    Queue("default").limit(1)
    scan = AdmissionScan(lambda queue: True, get_conf())
    scan.learn(pausing.read_pauses(raw).limits)
    assert scan.turn(raw).again
    assert not scan.turn(raw).again
    assert Job.objects.filter(limit_key="").count() == 3


def test_a_scan_learns_and_forgets(raw: RawDatabase) -> None:
    scan = AdmissionScan(lambda queue: True, get_conf())
    assert not scan.learn(frozenset())
    assert scan.learn(frozenset({QUEUE_LIMIT}))
    assert not scan.learn(frozenset({QUEUE_LIMIT}))
    assert scan.declares()
    assert scan.rates == []
    assert scan.learn(frozenset({QUEUE_LIMIT._replace(rate=3, per=1.0)}))
    assert [rate.queue for rate in scan.rates] == ["*"]
    assert scan.learn(frozenset())
    assert scan.rates == []


# From code


def test_what_is_set_says_all_and_leaves_its_trail(raw: RawDatabase) -> None:
    mail = Queue("mail")
    assert not limits.current()
    found = mail.limit(2, rate=10, per=timedelta(minutes=1), by="anna", reason="the API is slow", until=3600)
    assert mail.limited == found
    assert (found.kind, found.name, found.concurrency, found.rate, found.per) == ("queue", "mail", 2, 10, 60.0)
    assert (found.set_by, found.reason) == ("anna", "the API is slow")
    assert found.until is not None
    assert found.until - found.set_at == timedelta(hours=1)
    mail.limit(3, by="bob")
    [now] = LimitOverride.objects.current()
    assert (now.concurrency, now.rate, now.per, now.set_by, now.reason, now.until) == (3, None, None, "bob", "", None)
    assert mail.restore_limit(by="anna", reason="it is well again")
    assert not mail.restore_limit()
    assert not limits.current()
    trail = Action.objects.order_by("pk").values_list("verb", "kind", "subject", "acted_by", "reason", "changed")
    assert list(trail) == [
        ("limit", "queue", "mail", "anna", "the API is slow", 1), ("limit", "queue", "mail", "bob", "", 1),
        ("restore limit", "queue", "mail", "anna", "it is well again", 1),
    ]  # fmt: skip
    modes = list(Action.objects.order_by("pk").values_list("mode", flat=True))
    assert modes[0].startswith("concurrency=2 rate=10 per=60 until=20")
    assert modes[1:] == ["concurrency=3", ""]


def test_the_period_of_a_rate_is_the_codes_or_a_minute(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"rate": 5, "per": 7}}}
    assert Queue("mail").limit(rate=2).per == 7.0
    assert Queue("bulk").limit(rate=2).per == 60.0
    assert Queue("mail").limit(4).per is None


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({}, "give concurrency, rate or both"),
        ({"concurrency": 0}, "pause the queue"),
        ({"rate": 0}, "pause the queue"),
        ({"concurrency": -1}, "whole number from 1"),
        ({"concurrency": True}, "whole number from 1"),
        ({"concurrency": 1_000_001}, "1000000"),
        ({"concurrency": 1, "per": 5}, "give rate, too"),
        ({"rate": 1, "per": 0.01}, "per must be from 0.1"),
        ({"concurrency": 1, "until": -5}, "until must be"),
        ({"concurrency": 1, "reason": "x" * 501}, "at most 500"),
    ],
)
def test_what_no_limit_may_be_is_refused_and_changes_nothing(
    raw: RawDatabase, numbers: dict[str, Any], words: str
) -> None:
    Queue("mail").limit(7)
    with pytest.raises(InvalidJob, match=words):
        Queue("mail").limit(**numbers)
    assert [each.concurrency for each in limits.current()] == [7]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("queue", OWN_QUEUE, "own"), ("queue", "no good", "no queue"), ("job", "shop.none", "shop.none"),
        ("job", "pgjobs.undo", "pgjobs.undo"), ("key", "shop.charge", "no limit with a key"),
    ],
)  # fmt: skip
def test_what_can_have_no_limit_gets_none(raw: RawDatabase, kind: str, name: str, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        limits.override(kind, name, concurrency=1)
    assert not LimitOverride.objects.exists()


def test_an_end_in_the_past_is_refused_by_the_databases_clock(raw: RawDatabase) -> None:
    [(past,)] = raw.query("SELECT now() - interval '1 hour'")
    with pytest.raises(InvalidJob, match="in the past"):
        Queue("mail").limit(1, until=past)
    assert not LimitOverride.objects.exists()


def test_a_limit_is_set_with_the_callers_transaction(raw: RawDatabase) -> None:
    with transaction.atomic():
        definition("test.job").limit(1)
        assert len(limits.current()) == 2
        transaction.set_rollback(True)
    assert not LimitOverride.objects.exists()
    assert not Action.objects.exists()


def test_a_job_that_the_code_knows_no_more_is_still_restored(raw: RawDatabase) -> None:
    limiting.override_limit(raw, "job", ["shop.gone"], Bounds(1), by="", reason="")
    assert limits.restore("job", "shop.gone")


def test_limits_that_are_over_go_after_a_day(raw: RawDatabase) -> None:
    Queue("mail").limit(1)
    Queue("bulk").limit(1, until=60)
    Queue("bulk").restore_limit()
    assert unparking.expire_pauses(raw) == 0
    raw.query("UPDATE pgjobs_limit SET until = until - interval '25 hours' WHERE name = 'bulk'")
    assert unparking.expire_pauses(raw) == 1
    assert [each.name for each in LimitOverride.objects.all()] == ["mail"]


def test_async_callers_have_the_same(raw: RawDatabase) -> None:
    assert async_to_sync(Queue("mail").alimit)(2, by="anna").concurrency == 2
    assert async_to_sync(Queue("mail").arestore_limit)()
    assert async_to_sync(definition("test.job").alimit)(2, each_key=True).kind == "key"
    assert async_to_sync(definition("test.job").arestore_limit)(each_key=True)


# What is told


def test_the_numbers_in_force(raw: RawDatabase) -> None:
    definition("test.job").limit(rate=3, per=5)
    known = limiting.read_limits(raw)
    assert [each.name for each in known] == ["old.job", "test.job"]
    assert found_for(known, "job", ["other", "old.job"]) == known[0]
    assert found_for(known, "queue", ["old.job"]) is None
    assert merged(Bounds(9, 8, 7.0), known[0]) == Bounds(9, 3, 5.0)
    assert merged(Bounds(9, 8, 7.0), known[0]._replace(rate=None, concurrency=1)) == Bounds(1, 8, 7.0)
    assert merged(Bounds(9), None) == Bounds(9)


def test_a_held_job_says_who_set_the_limit_and_what_the_code_says(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"concurrency": 9}}}
    ids = blocked(3, name="shop.charge")
    Queue("default").limit(2, by="anna")
    definition("shop.charge").limit(rate=2, per=30)
    named = terms(name="shop.charge", job="shop.charge", names=("shop.charge",), of_queue=Bounds(9))
    assert entered(raw, named) == 2
    found = {blocker.kind: blocker.words for blocker in job(ids[2]).blocked_by()}
    assert found == {
        "queue": "queue default: 2 of 2 slots are taken (set by anna; the code says 9)",
        "job": "job shop.charge: 2 of 2 starts in 30 seconds are used up "
        "(set by an operator; the code has no such limit)",
    }
    assert "set by anna" in str(job(ids[2]).why())
    Queue("default").restore_limit()
    definition("shop.charge").restore_limit()
    assert job(ids[2]).blocked_by() == []


def test_health_notes_each_limit_beside_the_codes(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"concurrency": 9}}}
    Queue("mail").limit(2, by="anna")
    definition("test.job").limit(1, each_key=True)
    limiting.override_limit(raw, "job", ["shop.gone"], Bounds(None, 5, 60.0), by="", reason="")
    found = [each for each in holdups.problems(raw, "default", Limits()) if each.code == "limit_set"]
    assert all(each.is_note for each in found)
    assert [each.text for each in found] == [
        "The limit of queue mail is 2 at once, set by anna; in the code 9 at once.",
        "The limit of each key of job old.job is 1 at once, set by an operator; in the code 1 at once.",
        "The limit of each key of job test.job is 1 at once, set by an operator; in the code 1 at once.",
        "The limit of job shop.gone is 5 starts in 60 s, set by an operator; none in the code, which has no job "
        "that it could count.",
    ]
    only = [each.code for each in holdups.problems(raw, "default", Limits(queues=["bulk"])) if each.queue == "mail"]
    assert only == []


def test_a_pause_and_a_limit_of_one_queue_do_not_disturb_each_other(raw: RawDatabase) -> None:
    blocked(3)
    Queue("default").limit(2)
    Queue("default").pause()
    assert admit(raw) == []
    assert Queue("default").resume()
    assert entered(raw) == 2
    assert QueueState.objects.current().count() == 0
    assert Queue("default").limited is not None
