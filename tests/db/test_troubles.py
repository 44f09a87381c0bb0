"""Whoever looks sees trouble at once: each incident is a problem or a note, with a list that shows just its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client

from django_pgjobs import Sequence
from django_pgjobs import job as job_
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.inspection import why
from django_pgjobs.maintenance import notices
from django_pgjobs.maintenance.statistics import Measurer, problems_of
from django_pgjobs.models import Attempt, Heartbeat, Job, LeaderTerm, Memo, QueueState
from django_pgjobs.store import finalising, leading, troubles
from django_pgjobs.store.database import on
from django_pgjobs.store.keeping import Crash, record_crashes
from django_pgjobs.testing import run_jobs
from django_pgjobs.worker.shared.deaths import CrashWriter, Deaths
from tests.db.test_figures import ended, measured
from tests.db.test_health import beat
from tests.plugins.explaining import Explaining, analysed_while_empty, nodes
from tests.plugins.fix_admin import ids_on
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, claim, from_the_beginning, job, register
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

PAGE = "/admin/pgjobs/overview/"


def later(ids: list[int], **facts: Any) -> list[int]:
    Job.objects.filter(pk__in=ids).update(**{"run_at": Now() + timedelta(minutes=5), "attempt": 1, **facts})
    return ids


def hold(ids: list[int], hold: str, **facts: Any) -> list[int]:
    Job.objects.filter(pk__in=ids).update(**{"hold": hold, "limit_key": "eu" if hold == "limited" else None, **facts})
    return ids


def fails_and_retries(raw: RawDatabase) -> list[int]:
    """Jobs with a limit that have failed: their retries are held by it."""
    ended("retried", 2000, queue="billing", name="test.job")
    ended("succeeded", 80, queue="billing", name="test.job")
    return later(hold(register(5, queue="billing"), "limited"))


def fails_for_good(raw: RawDatabase) -> list[int]:
    ended("abandoned", 3, queue="billing", name="test.job")
    ids = register(3, queue="billing")
    Job.objects.filter(pk__in=ids).update(outcome="abandoned", finished_at=Now())
    return ids


def fails_until_none_is_tried_again(raw: RawDatabase) -> list[int]:
    """Most of the attempts were tried again, and now each of the jobs has been abandoned."""
    ended("retried", 12, queue="billing", name="test.job")
    return fails_for_good(raw)


def parked_by_old_code(raw: RawDatabase) -> list[int]:
    ids = register(4, queue="billing")
    held = claim(raw, 4, from_the_beginning(("billing", 0)))
    finalising.park_jobs(raw, held.ends(reason="No job named 'test.job' is known."), AUTHOR)
    return ids


def limited(raw: RawDatabase) -> list[int]:
    return hold(register(7, queue="billing"), "limited")


def paused_with_its_jobs(raw: RawDatabase) -> list[int]:
    QueueState.objects.create(kind="job", name="test.job", paused_by="anna", reason="the API is down")
    return hold(register(2, queue="billing"), "paused")


def retrying(raw: RawDatabase) -> list[int]:
    return later(register(3, queue="billing"))


def unapproved(raw: RawDatabase) -> list[int]:
    ids = register(2, queue="billing")
    Job.objects.filter(pk__in=ids).update(run_at=Now() + timedelta(days=14))
    Memo.objects.bulk_create([Memo(job_id=each, name="approval", kind="event", event=f"ok {each}") for each in ids])
    return ids


@job_(name="troubles.ordered", max_attempts=1)
def ordered() -> None:
    raise ValueError("broken")


def held_up(raw: RawDatabase) -> list[int]:
    """Two jobs of one sequence behind an abandoned one, and one of another; nothing waits for the other abandoned."""
    ids = [ordered.using(sequence=name, queue="billing").register().pk for name in "aaabbcd"]
    for _ in range(2):
        ordered.using(sequence=Sequence("skipped", on_abandon="skip")).register()
    run_jobs(raise_errors=False)
    return [*ids[1:3], ids[4]]


INCIDENTS: dict[str, tuple[Callable[[RawDatabase], list[int]], bool]] = {
    "failing": (fails_and_retries, False),
    "failing ": (fails_for_good, False),
    "failing  ": (fails_until_none_is_tried_again, False),
    "parked": (parked_by_old_code, False),
    "limited": (limited, True),
    "paused": (paused_with_its_jobs, True),
    "held_up": (held_up, False),
    "retrying": (retrying, True),
    "waiting_for_event": (unapproved, True),
}
"""Code → what happens, and whether it is a note."""


@pytest.fixture
def root(committed: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def lead(raw: RawDatabase) -> None:
    assert LeaderTerm.objects.exists() or leading.take_term(raw, AUTHOR, seconds=60)
    Measurer(AUTHOR, problems_of)(on("default"))


def banner(root: Client) -> dict[str, Any]:
    found: list[dict[str, Any]] = root.get(PAGE).context["sections"]
    return next(each for each in found if each["id"] == "pgjobs-banner")


def found() -> list[HealthProblem]:
    return health.problems(on("default"), "default", Limits())


@pytest.mark.parametrize("code", INCIDENTS)
@pytest.mark.parametrize("led", [True, False])
def test_an_incident_is_told_everywhere_and_leads_to_its_jobs(
    raw: RawDatabase, root: Client, code: str, led: bool
) -> None:
    beat()
    lead(raw)
    assert banner(root)["calm"] == "All queues are served, and no job waits."
    happens, is_note = INCIDENTS[code]
    ids, code = happens(raw), code.strip()
    if led:
        lead(raw)
    else:
        LeaderTerm.objects.update(worker_name="somebody else")
    shown = banner(root)
    assert shown["calm"] == ""
    [told] = [each for each in found() if each.code == code and (code != "paused" or each.list)]
    assert (told.is_note, told.queue in {"billing", None}) == (is_note, True)
    [entry] = [
        each for each in shown["problems"] if each["text"] == told.text or each["text"].startswith(told.text[:40])
    ]
    assert entry["is_note"] == is_note
    assert sorted(ids_on(root.get(entry["url"]))) == sorted(ids)
    status, out, _ = pgjobs("check")
    assert (status, f"{code}: " in out, out.startswith("healthy")) == (0 if is_note else 1, True, is_note)
    for command in ("stats", "top"):
        assert f"{code}: " in pgjobs(command, *["--once"] * (command == "top"))[1]
    listed = json.loads(pgjobs("stats", "--format", "json")[1])
    assert code in {each["code"] for each in listed["notes" if is_note else "problems"]}
    assert (code in {each.code for each in notices.problems_of(on("default"))}) != is_note or is_note


def test_a_death_and_suspects_are_told_with_the_page_of_their_worker(raw: RawDatabase, root: Client) -> None:
    [one] = register()
    held = claim(raw)
    beat(
        id=WORKER, name="web-1", deaths=2, died_at=Now() - timedelta(minutes=3), death="It was killed. It ran #7 x.y.",
        suspects={"running": [6], "pending": [one]}, suspects_since=Now() - timedelta(minutes=3),
    )  # fmt: skip
    lead(raw)
    told = {each["text"]: each["url"] for each in banner(root)["problems"]}
    [crashed] = [text for text in told if "An executor of worker web-1 died 3 min ago" in text]
    [suspects] = [text for text in told if f"alone for 3 min, since an executor died with them: #6, #{one}" in text]
    assert "It ran #7 x.y." in crashed
    assert told[crashed] == told[suspects] == f"/admin/pgjobs/heartbeat/{WORKER}/change/"
    page = root.get(told[crashed]).content.decode()
    assert "It ran #7 x.y." in page
    assert f"running: #6; pending: #{one}" in page
    Job.objects.filter(pk=one).update(overdue_at=Now() - timedelta(minutes=1))
    page = root.get(f"/admin/pgjobs/job/{one}/change/").content.decode()
    assert "It has not started again" in page
    assert "Waits to run again, apart" in page
    assert "Its time ran out" not in page
    assert why.of(one, "default").code == "suspect"
    [behind] = register()
    assert why.of(behind, "default").code == "bench"
    Heartbeat.objects.update(died_at=Now() - timedelta(hours=2), suspects=None)
    assert not {"crashed", "suspects"} & {each.code for each in found()}
    assert why.of(one, "default").code == "overdue"
    assert held.ids == [one]


def test_a_crash_is_in_the_history_once_however_often_it_is_written(raw: RawDatabase) -> None:
    """Beside the end of the same claim, and not for a job that is gone."""
    [one] = register()
    held = claim(raw)
    crash = Crash(one, str(UUID(int=5)), 1, 2.5, "django_pgjobs.exceptions.ExecutorDied", "It was killed.")
    for _ in range(2):
        record_crashes(raw, [(crash, 4.0), (crash._replace(id=one + 1, note=str(UUID(int=6))), 1.0)], AUTHOR)
    finalising.finalise_end(raw, held.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE), AUTHOR)
    rows = Attempt.objects.order_by("id").values_list("job", "number", "cause", "duration_seconds", "worker_name")
    assert list(rows) == [(one, 1, "crashed", 2.5, AUTHOR.name), (one, 1, "failed", 1.0, AUTHOR.name)]
    assert Attempt.objects.earliest("id").ended_at < Attempt.objects.latest("id").ended_at - timedelta(seconds=3)


def test_a_note_of_a_crash_leaves_as_it_is_written(raw: RawDatabase) -> None:
    register()
    deaths = Deaths()
    deaths.note(claim(raw).jobs[0], FAILURE, 2.5)
    writer = CrashWriter(deaths, AUTHOR)
    before = writer.urgent
    writer(raw)
    assert (before, writer.urgent) == (True, False)
    assert Attempt.objects.get().duration_seconds == 2.5


def test_who_parked_a_job_is_named(raw: RawDatabase) -> None:
    [first, *_] = parked_by_old_code(raw)
    said = "No job named 'test.job' is known. Parked by worker test worker, release release 1."
    assert job(first).hold_reason == said
    assert "Parked by worker test worker" in next(each.text for each in found() if each.code == "parked")


@pytest.mark.parametrize(
    ("rows", "fails"),
    [
        ([("retried", 2, 0)], False),
        ([("retried", 3, 0)], True),
        ([("abandoned", 3, 0)], True),
        ([("retried", 3, 0), ("succeeded", 4, 0)], False),
        ([("retried", 3, 0), ("stepped", 3, 0)], True),
        ([("retried", 50, 20)], True),
        ([("retried", 50, 20), ("succeeded", 50, 15)], False),
        ([("retried", 50, 20), ("succeeded", 1, 0)], True),
        ([("retried", 50, 20), ("succeeded", 9, 0)], False),
        ([("retried", 50, 65)], False),
        ([("released", 50, 0)], False),
        ([("cancelled", 50, 0)], False),
    ],
)
def test_what_fails_by_its_latest_attempts(raw: RawDatabase, rows: list[tuple[str, int, int]], fails: bool) -> None:
    """Old failures tell while nothing newer does, and no longer once it has succeeded."""
    for outcome, jobs, ago in rows:
        ended(outcome, jobs, ago=ago)
    assert [each.code for each in found() if each.code == "failing"] == ["failing"] * fails


def test_jobs_that_an_operator_abandoned_do_not_fail(raw: RawDatabase) -> None:
    ended("abandoned", 50, run_histogram=[], wait_histogram=[])
    assert "failing" not in {each.code for each in found()}


@pytest.mark.parametrize("code", ["limited", "paused", "waiting_for_event"])
def test_what_holds_for_too_long_is_a_problem(raw: RawDatabase, code: str) -> None:
    INCIDENTS[code][0](raw)
    Job.objects.filter(hold="limited").update(run_at=Now() - timedelta(hours=2), created_at=Now() - timedelta(hours=2))
    QueueState.objects.update(paused_at=Now() - timedelta(hours=25))
    Memo.objects.update(created_at=Now() - timedelta(days=3))
    assert [each.code for each in found() if each.code == code and not each.is_note] == [code]
    QueueState.objects.update(until=Now() + timedelta(hours=25))
    options = ("--max-limited", "3h", "--max-event", "4d", "--format", "json")
    told = json.loads(pgjobs("check", *options)[1])
    assert code not in {each["code"] for each in told["problems"]}
    assert code in {each["code"] for each in told["notes"]}


def test_a_sequence_is_held_up_until_its_job_is_passed(raw: RawDatabase) -> None:
    """The text names the job that has been abandoned for the longest time."""
    one, two, other = held_up(raw)
    first = Job.objects.filter(sequence="a").earliest("pk").pk
    Job.objects.filter(pk=first).update(finished_at=Now() - timedelta(hours=3))
    [told] = [each for each in found() if each.code == "held_up"]
    assert told.text.startswith(
        "In queue billing 2 sequences are held up, each by an abandoned job, the first for 3 h: "
    )
    assert f": #{first} of a, #{other - 1} of b. " in told.text
    assert Job.objects.filter(pk__in=[one, other]).unblock().changed == 2
    assert "held_up" not in {each.code for each in found()}
    run_jobs(raise_errors=False)
    [told] = [each for each in found() if each.code == "held_up"]
    assert told.text.startswith("In queue billing 1 sequence is held up by an abandoned job, the first for ")
    assert f": #{one} of a. " in told.text
    assert Job.objects.filter(pk=two).unblock().changed == 1
    assert "held_up" not in {each.code for each in found()}


def test_a_crowded_queue_hides_nothing_of_another(raw: RawDatabase) -> None:
    """The sums of the workers are exact, however many jobs another queue has ended."""
    ended("succeeded", 90_000, queue="bulk")
    ended("succeeded", 200, queue="exports")
    ended("cancelled", 197_248, queue="hooks")
    ended("succeeded", 5, queue="exports", ago=61)
    counted = measured(raw, most=10)
    assert counted["exports"]["ended"]["succeeded"] == 200
    assert counted["hooks"]["ended"]["cancelled"] == 197_248
    assert all(each["at_least"] == [] for each in counted.values())
    hold(register(30, queue="bulk"), "limited")
    hold(register(4, queue="exports"), "limited")
    counted = measured(raw, most=10)
    assert (counted["exports"]["held"]["limited"], counted["exports"]["at_least"]) == (4, [])
    assert (counted["bulk"]["held"]["limited"], counted["bulk"]["at_least"]) == (10, ["held.limited"])


def test_queues_beyond_a_workers_bound_make_the_figures_lower_bounds(raw: RawDatabase) -> None:
    ended("succeeded", 7, queue="exports")
    ended("succeeded", 900, queue="others")
    counted = measured(raw)
    assert list(counted) == ["exports"]
    assert counted["exports"]["at_least"] == ["ended.succeeded", "ended.cancelled"]


def test_it_costs_the_same_however_much_there_is(db_connection: Any) -> None:
    """The tables analysed while empty, then 20,000 rows of each kind: each statement reads up to its bound."""
    raw = db_connection(pins=True)
    with analysed_while_empty(raw):
        raw.query(
            "INSERT INTO pgjobs_minute SELECT %s, date_trunc('minute', now()) - n * interval '1 minute', 'q', 'n' || m,"
            " 'retried', '', 5, 1, 1, '{5}', '{5}' FROM generate_series(0, 199) AS n, generate_series(1, 100) AS m",
            [UUID(int=0)],
        )
        raw.query(
            "INSERT INTO pgjobs_memo (job_id, name, kind, event)"
            " SELECT n, 'm', 'event', 'e' || n FROM generate_series(1, 20000) AS n"
        )
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, sequence, outcome, finished_at, hold) SELECT 'n', '{}',"
            " CASE kind.of WHEN 'each' THEN 's' || n WHEN 'one' THEN 's' END, kind.outcome, kind.ended, kind.hold"
            " FROM generate_series(1, 20000) AS n, (VALUES ('each', 'abandoned', now(), NULL),"
            " ('each', NULL, NULL, 'blocked'), ('one', NULL, NULL, 'blocked'), (NULL, 'abandoned', now(), NULL))"
            " AS kind (of, outcome, ended, hold)"
        )
        most = 1000
        runs = {
            "count_minutes": lambda db: troubles.count_minutes(db, seconds=3600, most=most),
            "list_failing": lambda db: troubles.list_failing(
                db, share=0.5, least=3, recent_seconds=300, seconds=3600, most=most, limit=20
            ),
            "count_events": lambda db: db.fetch("count_events", {"most": most}),
            "list_held_up": lambda db: troubles.list_held_up(db, most=most),
        }
        explaining = Explaining(raw, set())
        for name, run in runs.items():
            run(explaining)
            read = [
                (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                for node in nodes(explaining.plan)
                if node.get("Relation Name")
            ]
            assert max(read) <= 4 * most, (name, explaining.plan)
