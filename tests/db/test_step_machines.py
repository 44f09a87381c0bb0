"""Jobs that go on with a next step, run to their ends by ``run_jobs`` in a plain ``TestCase``'s transaction."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_pgjobs import Backoff, JobContext, Limit, Next, job, signals
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job, Step, StoredResult
from django_pgjobs.presentation.job_rows import step_at
from django_pgjobs.testing import run_job, run_jobs, wait_for_bypassed
from tests.plugins.fix_db import patience

pytestmark = pytest.mark.django_db

said: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


@job(name="steps.extract", queue="bulk", max_attempts=2, timeout=60, description="Report")
def extract(month: str, then: str = "load") -> Next | str:
    said.append(("extract", month))
    if then == "load":
        return Next(load.using(queue="web", max_attempts=4).bind(month, rows=3), delay=0)
    if then == "load later":
        return Next(load.bind(month, rows=3), delay=timedelta(hours=1))
    if then == "unstorable":
        return Next(load.bind(month, rows=object()))  # type: ignore[arg-type]
    if then == "unlimited":
        return Next(limited.bind("\0"))
    if then == "nothing":
        return Next(said.append)  # type: ignore[arg-type]
    return then


@job(
    name="steps.load", takes_context=True, backoff=Backoff(0), timeout=(5, 10), on_crash="abandon", unique="own {month}"
)
def load(context: JobContext, month: str, rows: int) -> Next:
    said.append(("load", month, rows, context.attempt, context.max_attempts))
    if month == "flaky" and context.attempt == 1:
        raise ValueError("not yet")
    return Next(publish.bind(month))


@job(name="steps.publish", max_attempts=1)
async def publish(month: str) -> str | Next:
    said.append(("publish", month))
    if month == "broken":
        raise ValueError("broken")
    if month == "endless":
        return Next(extract.bind(month, "done"))
    return f"report of {month}"


@publish.on_success
def published(context: JobContext, month: str) -> None:
    said.append(("published", context.name, month))


@extract.on_success
def extracted(context: JobContext, month: str, then: str = "") -> None:
    said.append(("extracted", month))


@job(name="steps.cancels", takes_context=True)
def cancels(context: JobContext) -> Next:
    Job.objects.filter(pk=context.id).cancel(mode="ask")
    return Next(publish.bind("may"))


@job(name="steps.limited", limits=Limit(1, key="{account}"))
def limited(account: str) -> None:
    said.append(account)


def again(one: Job) -> Job:
    one.refresh_from_db()
    return one


def test_a_machine_runs_to_its_end() -> None:
    """P29, P30: each step by its own definition; the callbacks are those of the last one."""
    one = extract.using(priority=4, description="May", tags=["may"]).register("may")
    ran = run_jobs()
    assert (ran.ran, ran.stepped, ran.succeeded, ran.errors) == ([one.pk] * 3, [one.pk] * 2, [one.pk], [])
    assert said == [
        ("extract", "may"), ("load", "may", 3, 1, 4), ("publish", "may"), ("published", "steps.publish", "may"),
    ]  # fmt: skip
    assert (again(one).state, one.name, one.result) == ("succeeded", "steps.publish", "report of may")
    assert (one.queue, one.priority, one.description, one.tags) == ("default", 4, "May", ("may",))
    kept = list(one.steps.order_by("pk").values_list("name", "queue", "attempt"))
    assert kept == [("steps.extract", "bulk", 1), ("steps.load", "web", 1)]


def test_a_step_has_the_values_of_its_definition_and_of_using() -> None:
    one = extract.using(unique="k").register("may")
    run_job(one)
    assert (again(one).name, one.queue, one.max_attempts, one.timeout_seconds) == ("steps.load", "web", 4, 10.0)
    assert one.options == {"on_crash": "abandon", "soft_timeout": 5.0}
    assert (one.key, one.attempt, one.flow) == ("k", 0, 8)
    run_job(one)
    assert (again(one).name, one.queue, one.max_attempts, one.options, one.key) == (
        "steps.publish", "default", 1, None, "k",
    )  # fmt: skip


def test_a_delayed_step_is_scheduled() -> None:
    """P30."""
    one = extract.register("may", "load later")
    assert run_jobs().stepped == [one.pk]
    assert again(one).label == "scheduled"
    assert run_jobs(include_scheduled=True).succeeded == [one.pk]


def test_each_step_has_its_own_attempts_and_a_retry_goes_on_at_the_failed_one() -> None:
    """P26, P29, P32."""
    one = extract.register("flaky")
    assert run_jobs(include_scheduled=True).retried == [one.pk]
    assert again(one).state == "succeeded"
    two = extract.register("broken")
    assert run_jobs().abandoned == [two.pk]
    assert (again(two).name, two.attempt, two.error) == ("steps.publish", 1, "ValueError: broken")
    said.clear()
    two.retry()
    assert run_jobs().abandoned == [two.pk]
    assert said == [("publish", "broken")]


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("unstorable", "The next step cannot be stored: job 'steps.load': "),
        ("unlimited", "The next step cannot be stored: job 'steps.limited': "),
    ],
)
def test_a_next_step_that_cannot_be_stored_is_the_end_of_the_job(then: str, why: str) -> None:
    """P31: recorded with its reason, at once, whatever attempts are left and however results are treated."""
    one = extract.register("may", then)
    ran = run_jobs()
    assert (ran.abandoned, len(ran.ran)) == ([one.pk], 1)
    assert (again(one).name, one.error.startswith(f"UnstorableResult: {why}")) == ("steps.extract", True), one.error
    assert not Step.objects.exists()


def test_what_is_no_job_is_refused_where_it_is_said() -> None:
    """§13: an ordinary failure of the job, whose message says what to write."""
    one = extract.register("may", "nothing")
    ran = run_jobs(include_scheduled=True)
    assert ran.abandoned == [one.pk]
    assert again(one).error.startswith("InvalidJob: Next takes a call, made by a definition's bind(…), not ")


@pytest.mark.parametrize(
    "option",
    [
        {"unique": "k"},
        {"idempotency_key": "k"},
        {"deadline": datetime(2027, 1, 1, tzinfo=UTC)},
        {"expires": 60},
        {"tags": ["x"]},
        {"description": "x"},
        {"database": "default"},
        {"bypass": True},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_the_job_keeps_is_refused_as_an_option_of_a_step(option: Any) -> None:
    [name] = option
    with pytest.raises(InvalidJob, match=f"job 'steps.publish': a next step takes no {name}: the job keeps its own"):
        Next(publish.using(**option).bind("may"))


def test_delays_are_checked_where_they_are_said() -> None:
    for delay in (-1, float("nan"), "soon", 1e12):
        with pytest.raises(InvalidJob, match="delay"):
            Next(publish.bind("may"), delay=delay)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="run_at or delay, not both"):
        Next(publish.using(run_at=datetime(2026, 12, 1, tzinfo=UTC)).bind("may"), delay=5)
    with pytest.raises(TypeError, match="rows"):
        publish.bind(rows=3)  # type: ignore[call-arg]
    assert Next(publish.bind("may"), delay=5) == Next(publish.using(delay=5).bind("may"))
    assert extract("may") == Next(load.using(queue="web", max_attempts=4).bind("may", rows=3), delay=0)


def test_a_machine_may_come_back_to_a_step() -> None:
    one = extract.register("endless")
    assert run_jobs().succeeded == [one.pk]
    assert [entry[0] for entry in said] == ["extract", "load", "publish", "extract", "extracted"]
    assert (again(one).result, one.steps.count()) == ("done", 3)


def test_an_idempotent_result_is_stored_under_the_name_of_the_first_step() -> None:
    """C20, C21: the next machine with that key returns it without running, and a job of the last step does not."""
    one = extract.using(idempotency_key="k").register("may")
    run_jobs()
    assert [(row.name, row.key, row.result) for row in StoredResult.objects.all()] == [
        ("steps.extract", "k", "report of may")
    ]
    said.clear()
    two = extract.using(idempotency_key="k").register("may")
    three = publish.using(idempotency_key="k").register("june")
    run_jobs()
    assert (again(one).result, again(two).result, again(three).result) == (
        "report of may", "report of may", "report of june",
    )  # fmt: skip
    assert said == [("extracted", "may"), ("publish", "june"), ("published", "steps.publish", "june")]


def test_a_later_step_returns_the_result_of_a_machine_that_was_faster() -> None:
    """C21: as an attempt after a failure does; its key is not that of a job of the later step alone."""
    one, two = (extract.using(idempotency_key="k").register("may") for _ in range(2))
    publish.using(idempotency_key="k").register("april")
    run_job(one)
    run_jobs(limit=1)
    assert run_jobs().stepped.count(two.pk) <= 1
    assert again(two).result == again(one).result


def test_the_third_step_returns_the_result_of_a_machine_that_was_faster() -> None:
    """C21: what began both is their first step, however many they have behind them."""
    one, two = (extract.using(idempotency_key="k").register("may") for _ in range(2))
    run_jobs(limit=4)
    assert (one.steps.count(), two.steps.count()) == (2, 2)
    run_jobs()
    assert (again(one).result, again(two).result) == ("report of may", "report of may")
    assert said.count(("publish", "may")) == 1


def test_cancelled_meanwhile_the_next_step_is_not_entered() -> None:
    """A54: by the fence, for this process has not been told."""
    one = cancels.register()
    assert run_jobs().cancelled == [one.pk]
    assert (again(one).name, said, one.steps.count()) == ("steps.cancels", [], 0)


def test_registered_again_it_begins_with_its_first_step() -> None:
    one = extract.using(priority=2, description="May").register("may")
    run_jobs()
    other = again(one).register_again()
    assert (other.name, other.queue, other.priority, other.description) == ("steps.extract", "bulk", 2, "May")
    assert (other.payload, other.max_attempts, other.timeout_seconds, other.flow) == (
        one.steps.earliest("pk").payload, 2, 60.0, 0,
    )  # fmt: skip
    assert run_jobs().succeeded == [other.pk]
    one.steps.update(name="steps.forgotten")
    with pytest.raises(InvalidJob, match=r"job 'steps\.forgotten', the first step, is not known here"):
        one.register_again()


def test_an_attempt_that_goes_on_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    """P38: at DEBUG, once the step is stored; receivers hear of its end and of no end of the job."""
    heard: list[Any] = []

    def ended(decision: Any, **_: Any) -> None:
        heard.append(type(decision).__name__)

    def finished(outcome: str, **_: Any) -> None:
        heard.append(outcome)

    signals.attempt_ended.connect(ended)
    signals.job_finished.connect(finished)
    one = extract.register("may")
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        run_jobs()
    assert heard == ["Stepped", "Stepped", "Succeeded", "succeeded"]
    lines = [record.message for record in caplog.records if record.message.startswith("attempt ended, the job has not")]
    assert [re.sub(r"(claim|seconds|run_at)=\S+", "", line).split()[-5:] for line in lines] == [
        ["name=steps.extract", f"job={one.pk}", "attempt=1/2", "queue=bulk", "outcome=stepped"],
        ["name=steps.load", f"job={one.pk}", "attempt=1/4", "queue=web", "outcome=stepped"],
    ]


def test_a_job_that_bypasses_the_queue_has_no_next_step(caplog: pytest.LogCaptureFixture) -> None:
    """A39: nothing is stored that could go on."""
    extract.using(bypass=True).register("may")
    wait_for_bypassed(patience(10))
    assert "cannot take a next step, abandoned name=steps.extract step=steps.load" in caplog.text
    assert not Job.objects.exists()


# Shown


def with_a_failed_step() -> Job:
    """A machine that failed once in its second step and has ended."""
    one = extract.register("flaky")
    run_jobs(include_scheduled=True)
    return again(one)


def test_the_page_of_a_job_shows_its_finished_steps(admin_client: Client) -> None:
    one = with_a_failed_step()
    text = admin_client.get(f"/admin/pgjobs/job/{one.pk}/change/").content.decode()
    steps = re.findall(r"<tr><td>(steps\.\w+)</td><td>(\w+)</td><td>(\d)</td><td>run_jobs</td><td>", text)
    assert steps == [("steps.load", "web", "2"), ("steps.extract", "bulk", "1")]
    assert '<td class="pgjobs-when">1</td><td>steps.load</td><td class="pgjobs-when">Failed</td>' in text
    Step.objects.update(name="<b>")
    assert "<td>&lt;b&gt;</td>" in admin_client.get(f"/admin/pgjobs/job/{one.pk}/change/").content.decode()
    plain = limited.register("a")
    assert "Finished steps" not in admin_client.get(f"/admin/pgjobs/job/{plain.pk}/change/").content.decode()


def test_what_ended_as_a_step_did_was_of_that_step() -> None:
    at = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(5)]
    steps = [Step(name="load", finished_at=at[3]), Step(name="extract", finished_at=at[1])]
    named = [step_at(Job(name="publish"), steps, instant) for instant in at]
    assert named == ["extract", "extract", "load", "load", "publish"]


def test_the_shell_shows_the_finished_steps(capsys: pytest.CaptureFixture[str]) -> None:
    one = with_a_failed_step()
    call_command("pgjobs", "show", str(one.pk))
    out = capsys.readouterr().out
    assert re.findall(r"^step (\S+) finished at 20.* on run_jobs, took ", out, re.MULTILINE) == [
        "steps.load",
        "steps.extract",
    ]
    assert re.search(r"^attempt 1 of steps\.load failed at 20", out, re.MULTILINE)
    call_command("pgjobs", "show", str(one.pk), "--format", "json")
    found = json.loads(capsys.readouterr().out)
    assert [(step["name"], step["queue"], step["attempt"]) for step in found["steps"]] == [
        ("steps.load", "web", 2),
        ("steps.extract", "bulk", 1),
    ]
    assert [(each["name"], each["number"]) for each in found["attempts"]] == [("steps.load", 1)]
