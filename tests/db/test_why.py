"""Why a job does not run: each reason with its code, its sentence and what to do, read in one statement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db.models.functions import Now
from django.utils import translation

from django_pgjobs import job as declare
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import UnknownJob
from django_pgjobs.inspection import ready, why
from django_pgjobs.inspection.words import span
from django_pgjobs.models import Heartbeat, Job, QueueState, StoredResult
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.keys import Admission
from django_pgjobs.states import Hold, JobState
from django_pgjobs.store import finalising
from django_pgjobs.store.explaining import MOST_COUNTED, read_why
from django_pgjobs.testing import backdate
from tests.plugins.explaining import Explaining, analysed_while_empty, nodes
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, claim, from_the_beginning, job, register

pytestmark = pytest.mark.usefixtures("committed")


def worker(name: str = "web-1", *, heard: float = 1.0, **facts: Any) -> Heartbeat:
    """Store the heartbeat of a worker with two threads, ``heard`` seconds old."""
    given = {"id": uuid4(), "host": "h", "pid": 1, "processes": 1, "threads": 2, "async_slots": 1, "version": "1"}
    beat = Heartbeat.objects.create(name=name, **{**given, **facts})
    Heartbeat.objects.filter(pk=beat.pk).update(last_beat_at=Now() - timedelta(seconds=heard))
    return beat


def said(job_id: int) -> tuple[str, str]:
    """The reason's code and its words."""
    found = job(job_id).why()
    return found.code, str(found)


def test_a_job_that_is_not_there() -> None:
    found = why.of(7, "default")
    assert found.code == "unknown"
    assert "no job 7" in found.text


def test_scheduled_and_retrying_jobs_say_when(raw: RawDatabase) -> None:
    [later] = register(delay_seconds=180)
    [again] = register()
    taken = claim(raw)
    finalising.finalise_retry(
        raw, taken.ends(delay=20.0, cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE), AUTHOR
    )
    code, words = said(later)
    assert code == "scheduled"
    assert ", in 3 min." in words
    assert words.endswith(f"To run it now: manage.py pgjobs reschedule {later} --delay 0")
    code, words = said(again)
    assert code == "retrying"
    assert words.startswith("After attempt 1 of 5 it is tried again at ")
    assert "in 20 s: Declined: card refused" in words


def test_due_without_any_worker(raw: RawDatabase) -> None:
    [one] = register()
    code, words = said(one)
    assert code == "no_worker"
    assert words.endswith("but no worker was heard from lately. Start one: manage.py runjobs")
    worker(heard=300)
    worker(state="stopped", heard=200)
    assert "(the last 3 min ago)" in said(one)[1]


@pytest.mark.parametrize(
    ("serves", "code"),
    [
        ({}, "next"),
        ({"queues": ["mail", "default"]}, "next"),
        ({"queues": ["mail"]}, "not_served"),
        ({"excluded_queues": ["default"]}, "not_served"),
        ({"excluded_queues": ["mail"]}, "next"),
        ({"state": "draining"}, "draining"),
        ({"queues": "forged"}, "not_served"),
    ],
)
def test_due_with_a_worker_that_serves_its_queue_or_not(raw: RawDatabase, serves: dict[str, Any], code: str) -> None:
    [one] = register()
    worker(**serves)
    assert said(one)[0] == code


def test_due_while_all_that_serve_its_queue_are_quiet_or_drain(raw: RawDatabase) -> None:
    [one] = register()
    worker("q", state="quiet")
    assert "is quiet: an operator asked it" in said(one)[1]
    worker("d", state="draining")
    code, words = said(one)
    assert (code, "is draining, or quiet because an operator asked for that. When" in words) == ("quiet", True), words


def test_due_behind_others_and_behind_busy_workers(raw: RawDatabase) -> None:
    first = register(2)
    [later] = register(delay_seconds=-1)
    register(priority=5)
    register(priority=5, delay_seconds=60)
    register(queue="mail", priority=9)
    beat = worker()
    assert said(later)[0] == "behind"
    assert ". 1 due job of its queue goes first." in said(later)[1]
    assert ". 2 due jobs of its queue go first." in said(first[0])[1]
    Heartbeat.objects.filter(pk=beat.pk).update(running=2)
    worker("mail-1", queues=["mail"])  # has free threads, and nothing to do with it
    code, words = said(first[1])
    assert code == "busy"
    assert "at their last heartbeats they ran 2 jobs in 2 threads. 3 due jobs of its queue go first." in words


@pytest.mark.parametrize(
    ("places", "others", "code"),
    [
        ({"default": 1}, 0, "places"),
        ({"default": 2, "*": 1}, 0, "behind"),
        ({"*": 1}, 0, "places"),
        ({"mail": 5, "*": 2}, 1, "places"),  # one of another queue counts in the star, and those of mail do not
        ({"default": None, "*": 1}, 0, "behind"),
        ({"default": 1}, 1, "places"),
        (None, 0, "behind"),
        ("forged", 0, "behind"),
        ({"default": "forged"}, 0, "behind"),
    ],
)
def test_due_while_the_places_of_its_queue_are_taken(raw: RawDatabase, places: Any, others: int, code: str) -> None:
    register(3)
    [waiting] = register(delay_seconds=-1, priority=-1)
    for queue in ("mail", "mail", *["other"] * others):
        register(queue=queue)
        assert len(claim(raw, 1, from_the_beginning((queue, 0))).ids) == 1
    assert len(claim(raw, 1).ids) == 1
    worker(id=WORKER, threads=9, places=places)
    found = said(waiting)
    assert found[0] == code, found
    if code == "places":
        assert (
            f"as many jobs at once as its places allow: {sum(n for n in places.values() if n < 5)}. 2 due" in found[1]
        )
    worker("free")
    assert said(waiting)[0] == "behind", "another worker has room"


def test_what_runs_already_does_not_go_first(raw: RawDatabase) -> None:
    """Only what waits takes a place away; more workers would not help a job behind running ones."""
    [_, _, last] = register(3)
    assert len(claim(raw, 1).ids) == 1
    worker()
    assert ". 1 due job of its queue goes first." in said(last)[1]


def test_the_next_that_stays_tells_of_locks(raw: RawDatabase) -> None:
    [one] = register()
    worker()
    assert job(one).why().advice == ""
    backdate(job(one), run_at=60)
    assert "row's lock" in job(one).why().advice


@pytest.mark.parametrize(
    ("kind", "name", "what"), [("queue", "default", "queue default"), ("job", "test.job", "name test.job")]
)
def test_paused_by_whom_until_when_and_why(raw: RawDatabase, kind: str, name: str, what: str) -> None:
    [one] = register()
    worker()
    QueueState.objects.create(kind=kind, name=name, paused_by="anna", reason="printer\nis on fire.")
    code, words = said(one)
    assert code == "paused"
    assert f"Its {what} was paused " in words
    assert " ago by anna: printer is on fire. When that is over: manage.py pgjobs resume " in words
    QueueState.objects.update(until=Now() + timedelta(hours=1))
    assert " by anna until 20" in said(one)[1]
    QueueState.objects.update(until=Now() - timedelta(seconds=1))
    assert said(one)[0] == "next"


def test_a_name_is_quoted_where_it_is_to_be_pasted(raw: RawDatabase) -> None:
    """Whoever may register a job chooses its name, and an operator pastes the advice into a shell."""
    [one] = register(name="x; rm -rf ~")
    QueueState.objects.create(kind="job", name="x; rm -rf ~")
    assert job(one).why().advice.endswith("pgjobs resume --job 'x; rm -rf ~'")


def test_other_pauses_are_none_of_it(raw: RawDatabase) -> None:
    [one] = register()
    worker()
    QueueState.objects.create(kind="queue", name="mail")
    QueueState.objects.create(kind="job", name="default")
    assert said(one)[0] == "next"


def test_parked_waiting_limited_and_set_aside(raw: RawDatabase) -> None:
    holds = {hold: register()[0] for hold in Hold}
    for hold, job_id in holds.items():
        Job.objects.filter(pk=job_id).update(hold=hold, hold_reason="no job named test.job.", limit_key="eu")
    assert said(holds[Hold.PARKED])[1].startswith(
        "It is parked because the code of the worker that claimed it cannot run it: no"
    )
    assert said(holds[Hold.BLOCKED])[1] == "It waits for another job: no job named test.job."
    code, words = said(holds[Hold.LIMITED])
    assert code == "limited"
    assert "A limit of test.job for the key eu holds it: no job named test.job." in words
    assert words.endswith("No worker that could admit it was heard from lately: manage.py runjobs")
    assert said(holds[Hold.PAUSED])[0] == "paused"
    QueueState.objects.create(kind="job", name="test.job", paused_by="anna")
    assert " by anna." in said(holds[Hold.PAUSED])[1]


def order_sagas() -> None: ...


def test_a_job_that_no_code_declares_names_the_modules_where_workers_find_jobs(raw: RawDatabase) -> None:
    with registry.isolated(), pytest.raises(UnknownJob) as unknown:
        registry.resolve("shop.trips.order_saga")
    with registry.isolated():
        declare(name="shop.trips.order_sagas")(order_sagas)
        with pytest.raises(UnknownJob) as hinted:
            registry.resolve("shop.trips.order_saga")
    [one, other, near] = [*register(), *register(), *register()]
    Job.objects.filter(pk=near).update(hold="parked", hold_reason=str(hinted.value))
    assert "(did you mean 'shop.trips.order_sagas'?). Workers import jobs.py of each app" in said(near)[1]
    Job.objects.filter(pk=one).update(hold="parked", hold_reason=str(unknown.value))
    assert said(one)[1] == (
        "It is parked because the code of the worker that claimed it cannot run it: No job named "
        "'shop.trips.order_saga' is known to this process. Workers import jobs.py of each app and the modules of "
        "MODULES, and find tasks if TASKS names PgJobsBackend: declare the job there, or add this name to the aliases "
        "of another job, and deploy that; workers check every 30 s. Or cancel it."
    )
    why_not = "No job named 'shop.x' is known to this process: ImportError: no module named shop."
    Job.objects.filter(pk=other).update(hold="parked", hold_reason=why_not)
    assert said(other)[1].endswith("Deploy code that can; workers check every 30 s. Or retry or cancel the job.")


def test_a_limit_is_no_reason_before_its_time_or_while_it_is_paused(raw: RawDatabase) -> None:
    """A job that a limit holds for is ``limited`` from its registration on, and again after each failure."""
    worker()
    [later] = register(delay_seconds=180)
    [again] = register(delay_seconds=20)
    [due] = register()
    Job.objects.update(hold="limited", limit_key="eu")
    Job.objects.filter(pk=again).update(attempt=1, error="Declined: card refused")
    code, words = said(later)
    assert code == "scheduled"
    assert words.endswith(f"To run it now: manage.py pgjobs reschedule {later} --delay 0")
    code, words = said(again)
    assert code == "retrying"
    assert "in 20 s: Declined: card refused" in words
    assert said(due)[0] == "limited"
    QueueState.objects.create(kind="queue", name="default", paused_by="anna")
    assert said(due)[0] == "paused"
    assert "Its queue default was paused " in said(due)[1]
    assert said(later)[0] == "scheduled"


def test_a_hold_of_newer_code_is_named(raw: RawDatabase) -> None:
    [one] = register()
    Job.objects.filter(pk=one).update(hold="quarantined")
    assert said(one)[0] == "held"
    assert "(quarantined)" in said(one)[1]


def test_running_on_whom_and_till_when(raw: RawDatabase) -> None:
    register()
    held = claim(raw)
    worker("web-1", id=WORKER)
    code, words = said(held.ids[0])
    assert code == "running"
    assert words.startswith("Worker web-1 claimed it ")
    assert "attempt 1 of 5. It was last heard from 1 s ago, and its lease runs until 20" in words


def test_a_silent_worker_and_one_that_has_lost_it(raw: RawDatabase) -> None:
    register()
    held = claim(raw)
    worker("web-1", id=WORKER, heard=100)
    code, words = said(held.ids[0])
    assert code == "silent"
    assert "last heard from 100 s ago; unless it renews its lease, another worker rescues the job at 20" in words
    assert "No other worker that could rescue it was heard from lately" in words
    worker("web-2")
    backdate(job(held.ids[0]), lease=42)
    code, words = said(held.ids[0])
    assert code == "lost"
    assert "its lease ran out 12 s ago. A worker rescues it within seconds" in words
    Claim.objects.all().delete()
    assert "no claim names it" in said(held.ids[0])[1]


def test_overdue_cancelling_and_releasing(raw: RawDatabase) -> None:
    register(timeout_seconds=10.0)
    held = claim(raw)
    worker("web-1", id=WORKER)
    backdate(job(held.ids[0]), overdue_at=20)
    assert said(held.ids[0])[0] == "overdue"
    job(held.ids[0]).release()
    assert said(held.ids[0])[0] == "releasing"
    job(held.ids[0]).cancel(by="anna", reason="wrong data")
    code, words = said(held.ids[0])
    assert code == "cancelling"
    assert "Its cancel (ask) was requested " in words
    assert " ago by anna: wrong data." in words
    assert words.endswith(f"If it does not stop: manage.py pgjobs cancel {held.ids[0]} --mode interrupt")
    job(held.ids[0]).cancel(mode="kill")
    assert job(held.ids[0]).why().advice == ""


def test_only_its_callback_is_left(raw: RawDatabase) -> None:
    [one] = register()
    Job.objects.filter(pk=one).update(ending="abandoned")
    code, words = said(one)
    assert code == "callback"
    assert words.startswith(
        "Only its end is left: on_abandon, if it has one; then it is abandoned. It has been due for "
    )
    Job.objects.filter(pk=one).update(ending="cancelled")
    assert "on_cancel" in said(one)[1]


def test_ended_how_and_when(raw: RawDatabase) -> None:
    register(2)
    good, bad = claim(raw), claim(raw)
    [gone] = register()
    job(gone).cancel(by="anna", reason="wrong data")
    finalising.finalise_success(raw, good.ends(), AUTHOR)
    finalising.finalise_end(raw, bad.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE), AUTHOR)
    for job_id in (*good.ids, *bad.ids, gone):
        backdate(job(job_id), finished_at=200)
    assert said(good.ids[0]) == ("succeeded", "It succeeded 3 min ago, in attempt 1 of 5.")
    code, words = said(bad.ids[0])
    assert code == "abandoned"
    assert "It was abandoned 3 min ago after attempt 1 of 5: Declined: card refused" in words
    assert words.endswith(f"manage.py pgjobs retry {bad.ids[0]}")
    assert said(gone)[1].startswith("It was cancelled 3 min ago by anna: wrong data. manage.py pgjobs retry")


def test_a_key_that_another_has_now_is_in_the_way_of_a_retry(raw: RawDatabase) -> None:
    [one], [two] = register(), register()
    job(one).cancel()
    Job.objects.filter(pk__in=[one, two]).update(key="k", key_scope="until_started")
    Job.objects.filter(pk=two).update(unique_key="k")
    assert "cannot be retried" not in said(one)[1]
    Job.objects.filter(pk=one).update(key_scope="until_finished")
    assert said(one)[1].endswith(f"It cannot be retried while job {two} has its key.")


def test_a_job_that_got_anothers_result_says_whose(raw: RawDatabase) -> None:
    """Its own key does not count as another's, nor does a result of another name as this key's."""
    [one, two] = register(count=2)
    Job.objects.filter(pk=two).update(idempotency_key="order-1")
    finalising.finalise_success(raw, claim(raw, limit=2).ends(), AUTHOR)
    StoredResult.objects.create(name="test.other", key="order-1", job_id=one)
    assert "without running" not in said(two)[1]
    own = StoredResult.objects.create(name="test.job", key="order-1", job_id=two)
    assert "without running" not in said(two)[1]
    StoredResult.objects.filter(pk=own.pk).update(job_id=one)
    assert f"without running: job {one} had stored the result" in said(two)[1]


def test_every_state_has_a_reason(raw: RawDatabase) -> None:
    """No state is without a sentence that is its own."""
    [one] = register()
    facts = read_why(raw, one, silent_seconds=20, stale_seconds=60)
    assert facts is not None
    texts = {why.reason(facts._replace(state=state)).text for state in JobState}
    assert len(texts) == len(JobState)


def test_text_of_strangers_is_data(raw: RawDatabase) -> None:
    """A percent sign or a brace in what a row holds is no format."""
    [one] = register(name="test.%(evil)s{0}")
    Job.objects.filter(pk=one).update(hold="parked", hold_reason="100 %s %(x)s {y}")
    assert "100 %s %(x)s {y}" in said(one)[1]
    Job.objects.filter(pk=one).update(hold="limited", limit_key="%d")
    assert "test.%(evil)s{0} for the key %d" in said(one)[1]


def test_the_reason_is_read_in_the_readers_language(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = register()
    monkeypatch.setattr(ready, "_", lambda text: f"[{translation.get_language()}] {text}")
    with translation.override("de"):
        assert job(one).why().text.startswith("[de] ")


def test_why_from_asynchronous_code() -> None:
    [one] = register()
    assert async_to_sync(job(one).awhy)().code == "no_worker"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 ms"), (0.25, "250 ms"), (1, "1 s"), (119, "119 s"), (300, "5 min"), (7199.9, "2 h"), (172_799, "2 days")],
)
def test_spans(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize("pinned", [True, False])
def test_the_reason_costs_the_same_however_many_jobs_there_are(db_connection: Any, pinned: bool) -> None:
    """Behind 40,000 due jobs it counts a thousand, along the index; of those to come it reads none."""
    raw = db_connection(pins=pinned)
    with analysed_while_empty(raw):
        register(20_000)
        register(20_000, priority=3, delay_seconds=3600)
        register(20_000, priority=2)
        [last] = register()
        explaining = Explaining(raw, set())
        read_why(explaining, last, silent_seconds=20, stale_seconds=60)
        read = [
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in nodes(explaining.plan)
        ]
        assert max(read) <= 2 * (MOST_COUNTED + 1)
        worker()
        assert "More than 1000 due jobs of its queue go first" in said(last)[1]


def test_a_job_of_a_paused_queue_and_name_tells_of_both(raw: RawDatabase) -> None:
    [one] = register()
    QueueState.objects.create(kind="queue", name="default", paused_by="anna")
    QueueState.objects.create(kind="job", name="test.job", paused_by="bert", reason="too slow")
    code, words = said(one)
    assert code == "paused"
    assert "Its queue default was paused " in words
    assert " ago by anna. Its name test.job was paused " in words
    assert words.endswith("manage.py pgjobs resume default && manage.py pgjobs resume --job test.job")


def test_a_rate_says_how_many_starts_are_used_up(raw: RawDatabase, settings: Any) -> None:
    """What ``blocked_by()`` knows, ``why()`` tells."""
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"rate": 20, "per": 10, "concurrency": 1}}}
    [one] = register()
    Job.objects.update(hold="limited", limit_key="")
    [other] = register()
    Job.objects.filter(pk=other).update(limit_key="")
    Admission.objects.create(subject="queue:default", admitted_at=Now(), expires_at=Now(), starts=20)
    worker()
    code, words = said(one)
    assert code == "limited"
    assert f"Queue default: 1 of 1 slots are taken (#{other})." in words
    assert "Queue default: 20 of 20 starts in 10 seconds are used up." in words
    assert words.endswith("A worker admits it when there is room and its turn comes.")
