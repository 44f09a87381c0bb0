"""Reports to Sentry, by its real SDK with a transport in memory: failures, scopes, secrets and check-ins."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import sentry_sdk
from django.db import connection, transaction
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_pgjobs import Abandon, Backoff, Cancel, Cron, JobContext, Snooze, job
from django_pgjobs import decisions as decide
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.telemetry import checkins, quietly, sentry
from django_pgjobs.testing import context, run_jobs

pytestmark = pytest.mark.usefixtures("committed")

SECRET = "5eCr3t-0f-the-c4ller"
HOSTILE = "a\nname=forged \u202e\x1b[31m" + "x" * 10_000_000
NOW = Backoff(0)


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [json.loads(item.get_bytes()) for item in envelope.items]


class Reports:
    """What Sentry would have got."""

    def __init__(self, transport: Kept) -> None:
        self.transport = transport

    def events(self) -> list[dict[str, Any]]:
        return [item for item in self.transport.items if "check_in_id" not in item]

    def one(self) -> dict[str, Any]:
        (event,) = self.events()
        return event

    def check_ins(self) -> list[dict[str, Any]]:
        return [item for item in self.transport.items if "check_in_id" in item]

    def text(self) -> str:
        return json.dumps(self.transport.items, ensure_ascii=False)


def _init(**options: Any) -> Reports:
    sentry_sdk.init(
        dsn="http://key@localhost/1", transport=Kept, auto_session_tracking=False, send_client_reports=False, **options
    )
    return Reports(cast("Kept", sentry_sdk.get_client().transport))


@pytest.fixture
def reports(settings: Any) -> Iterator[Reports]:
    settings.PGJOBS = {
        **settings.PGJOBS, "MIDDLEWARE": ["django_pgjobs.telemetry.sentry.reporting"], "RELEASE": "v7",
    }  # fmt: skip
    quietly._complained.clear()
    checkins._noted.clear()
    with sentry_sdk.isolation_scope():
        yield _init()
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


@job(name="sentry.fails", takes_context=True, backoff=NOW, max_attempts=1)
def fails(context: JobContext, given: str = "", again: int = 0) -> str:
    local = {"copy": given}
    if again and context.attempt > again:
        return given
    _deep(local, [given])
    return ""


def _deep(local: Any, nested: list[str]) -> None:
    inner = nested[0] + str(local)
    raise LookupError(f"no such thing, {len(inner)} letters")


@job(name="sentry.afails", backoff=NOW, max_attempts=1)
async def afails(given: str = "") -> None:
    await asyncio.sleep(0)
    await _adeep(given)


async def _adeep(given: str) -> None:
    await asyncio.sleep(0)
    _deep({"copy": given}, [given])


@fails.on_success
def pleased(context: JobContext, given: str = "", again: int = 0) -> None:
    raise ValueError("pleased too early")


ERRORS: dict[str, BaseException] = {
    "snooze": Snooze(60),
    "cancel": Cancel("enough"),
    "abandon": Abandon("no use"),
}


@job(name="sentry.steers", max_attempts=1)
def steers(how: str) -> None:
    raise ERRORS[how]


class Hostile(Exception):
    def __str__(self) -> str:
        return HOSTILE + "\0"


Hostile.__qualname__ = HOSTILE[:5000]


@job(name="sentry.hostile", max_attempts=1)
def hostile() -> None:
    raise Hostile


@job(name="sentry.says", takes_context=True, max_attempts=1)
def says(context: JobContext, given: str = "", how: str = "message") -> None:
    if how == "message":
        sentry_sdk.capture_message("a message")
    elif how == "log":
        logging.getLogger("shop").error("an error line")
    elif how == "thread":
        worker = threading.Thread(target=_say_in_a_thread, args=(given,))
        worker.start()
        worker.join()
    elif how == "thread message":
        worker = threading.Thread(target=_say_message_in_a_thread, args=(given,))
        worker.start()
        worker.join()
    elif how == "own report":
        try:
            _deep({}, [given])
        except LookupError as error:
            sentry_sdk.capture_exception(error)
            raise
    elif how == "query":
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s", [given])
        raise LookupError("behind a query")
    elif how == "tag":
        sentry_sdk.set_tag("tenant", "acme")
        sentry_sdk.add_breadcrumb(category="shop", message="a crumb of this job")
        sentry_sdk.set_user({"id": 7})
        raise LookupError("with a tag")


def _say_message_in_a_thread(given: str) -> None:
    sentry_sdk.capture_message(f"a message of {len(given)} letters")


def _say_in_a_thread(given: str) -> None:
    try:
        _deep({}, [given])
    except LookupError as error:
        sentry_sdk.capture_exception(error)


@job(name="sentry.atomic", atomic=True, max_attempts=1)
def atomically() -> None:
    transaction.set_rollback(True)


# What is reported


@pytest.mark.parametrize("definition", [fails, afails], ids=["sync", "async"])
def test_a_failed_job_is_reported_once_with_its_facts(reports: Reports, definition: Any) -> None:
    """Though its log line is an ERROR with the same exception, which Sentry's own handler would report."""
    registered = definition.using(queue="mail").register(SECRET)
    run_jobs()
    event = reports.one()
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("LookupError", f"no such thing, {len(SECRET) * 2 + 12} letters")
    assert error["mechanism"]["type"] == "pgjobs"
    assert (event["level"], event["transaction"]) == ("error", definition.name)
    claim = event["tags"].pop("pgjobs.claim")
    assert len(claim) == 36
    assert event["tags"] == {
        "pgjobs.name": definition.name,
        "pgjobs.job": str(registered.pk),
        "pgjobs.attempt": "1/1",
        "pgjobs.queue": "mail",
        "pgjobs.outcome": "abandoned",
        "pgjobs.release": "v7",
    }
    assert "_deep" in [frame["function"] for frame in error["stacktrace"]["frames"]]


def test_a_retried_attempt_is_a_warning_and_the_last_one_an_error(reports: Reports) -> None:
    fails.using(max_attempts=2).register()
    run_jobs()
    assert [(event["level"], event["tags"]["pgjobs.outcome"]) for event in reports.events()] == [
        ("warning", "retried"),
        ("error", "abandoned"),
    ]


@pytest.mark.parametrize("how", sorted(ERRORS))
def test_steering_is_not_reported(reports: Reports, how: str) -> None:
    steers.register(how)
    run_jobs()
    assert reports.events() == []


def test_what_fails_behind_the_body_is_reported(reports: Reports) -> None:
    atomically.register()
    run_jobs()
    assert reports.one()["exception"]["values"][-1]["type"] == "RolledBack"


def test_an_error_in_a_callback_is_reported_once(reports: Reports) -> None:
    fails.using(max_attempts=2).register(again=1)
    run_jobs()
    first, callback = reports.events()
    assert first["level"] == "warning"
    assert callback["exception"]["values"][-1]["value"] == "pleased too early"
    assert callback["tags"]["pgjobs.callback"] == "on_success"


def test_what_a_job_has_reported_itself_is_not_reported_again(reports: Reports) -> None:
    says.register(how="own report")
    run_jobs()
    assert len(reports.events()) == 1


@pytest.mark.parametrize("missing", [DedupeIntegration, LoggingIntegration])
def test_one_report_whichever_integrations_are_off(reports: Reports, missing: Any) -> None:
    reports = _init(disabled_integrations=[missing()])
    fails.register()
    run_jobs()
    assert len(reports.events()) == 1


def test_hooks_of_the_project_get_the_exception(reports: Reports) -> None:
    hints: list[Any] = []

    def before_send(event: Any, hint: Any) -> Any:
        hints.append(hint["exc_info"][0])
        return event

    reports = _init(before_send=before_send, ignore_errors=["RolledBack"])
    fails.register()
    atomically.register()
    run_jobs()
    assert hints == [LookupError]
    assert len(reports.events()) == 1


# A scope for each job


def test_nothing_of_one_job_is_in_the_report_of_another(reports: Reports) -> None:
    sentry_sdk.set_tag("outside", "yes")
    sentry_sdk.add_breadcrumb(category="shop", message="a crumb outside")
    says.register(how="tag")
    run_jobs()
    fails.register()
    run_jobs()
    first, second = reports.events()
    assert first["tags"]["tenant"] == "acme"
    assert "a crumb of this job" in json.dumps(first["breadcrumbs"])
    for word in ("acme", "crumb of this", "crumb outside", "outside"):
        assert word not in json.dumps({key: second.get(key) for key in ("tags", "breadcrumbs", "user")})
    assert "user" not in second or "id" not in second["user"]
    assert "outside" not in first["tags"]
    sentry_sdk.capture_message("afterwards")
    assert "pgjobs.job" not in reports.events()[-1].get("tags", {})


def test_async_jobs_that_run_together_have_scopes_of_their_own(reports: Reports) -> None:
    barrier: list[Any] = []

    async def one(number: int) -> None:
        async def run(context: JobContext) -> None:
            sentry_sdk.set_tag("own", str(number))
            barrier.append(number)
            while len(barrier) < 5:
                await asyncio.sleep(0)
            sentry_sdk.capture_message(f"message {number}")

        await cast("Any", sentry.reporting(run))(context(id=number))

    async def main() -> None:
        await asyncio.gather(*(asyncio.create_task(one(number)) for number in range(5)))

    sentry_sdk.set_tag("outside", "yes")
    asyncio.run(main())
    assert not [event for event in reports.events() if "outside" in event["tags"]]
    found = {event["message"]: (event["tags"]["own"], event["tags"]["pgjobs.job"]) for event in reports.events()}
    assert found == {f"message {number}": (str(number), str(number)) for number in range(5)}


# What must never be there


@pytest.mark.parametrize("definition", [fails, afails], ids=["sync", "async"])
@pytest.mark.parametrize("options", [{}, {"attach_stacktrace": True}, {"max_value_length": 10_000_000}])
def test_arguments_are_in_no_report_of_a_failure(reports: Reports, definition: Any, options: Any) -> None:
    reports = _init(**options)
    definition.register(SECRET)
    run_jobs()
    assert len(reports.events()) == 1
    assert SECRET not in reports.text()


@pytest.mark.parametrize("how", ["message", "log", "thread", "thread message", "own report", "query"])
def test_arguments_are_in_no_other_event_of_a_job(reports: Reports, how: str) -> None:
    """Messages with stacks, lines that a job logs, threads that it starts, what it reports itself, its queries."""
    from sentry_sdk.integrations.django import DjangoIntegration

    reports = _init(
        attach_stacktrace=True, integrations=[DjangoIntegration()], _experiments={"record_sql_params": True}
    )
    says.register(SECRET, how)
    run_jobs()
    assert len(reports.events()) == 1
    assert SECRET not in reports.text()
    if how == "query":
        assert "SELECT" in json.dumps(reports.one()["breadcrumbs"])


def test_events_of_others_keep_their_variables(reports: Reports) -> None:
    fails.register()
    run_jobs()
    try:
        _deep({}, ["-".join(["no", "job", "of", "ours"])])
    except LookupError as error:
        sentry_sdk.capture_exception(error)
    frames = reports.events()[-1]["exception"]["values"][-1]["stacktrace"]["frames"]
    assert "no-job-of-ours" in json.dumps([frame["vars"] for frame in frames])


def test_hostile_errors_are_bounded_and_escaped(reports: Reports) -> None:
    hostile.register()
    run_jobs()
    event = reports.one()
    (error,) = event["exception"]["values"]
    assert len(error["type"]) <= 200
    assert len(reports.text()) < 200_000
    assert "\n" not in error["type"]
    for mark in ("\u202e", "\x1b", "\0"):
        assert mark not in error["type"] + error["value"]


def test_hostile_facts_are_bounded_and_escaped() -> None:
    tags = sentry._tags(context(name=HOSTILE, queue=HOSTILE, cron_entry=HOSTILE, description=HOSTILE))
    assert max(map(len, tags.values())) <= 200
    assert not [value for value in tags.values() if "\n" in value or "\u202e" in value]


def test_without_init_nothing_happens(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": ["django_pgjobs.telemetry.sentry.reporting"]}
    fails.register()
    run_jobs()
    assert Job.objects.get().outcome == "abandoned"
    assert not [message for message in caplog.messages if "Sentry" in message]


def test_an_sdk_that_raises_costs_one_log_line_and_no_job(
    reports: Reports, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug of the SDK")

    for name in ("get_isolation_scope", "capture_event"):
        monkeypatch.setattr(sentry_sdk, name, fail)
    fails.using(max_attempts=2).register(again=1)
    run_jobs()
    assert Job.objects.get().outcome == "succeeded"
    assert [line for line in caplog.messages if "Sentry" in line] == ["Sentry failed, jobs continue without it"]


# Check-ins


def fire(name: str, registered: Any) -> None:
    """Make a job that of a fire of the entry ``name``, as the leader registers it."""
    fired = {"cron_entry": name, "fire_at": datetime(2026, 5, 1, tzinfo=UTC)}
    assert Job.objects.filter(pk=registered.pk).update(**fired)


@job(name="sentry.nightly", takes_context=True, backoff=NOW, max_attempts=3, timeout=90)
def nightly(context: JobContext, how: str = "ok") -> None:
    if how in ERRORS:
        raise ERRORS[how]
    if (how == "once" and context.attempt == 1) or how == "fails":
        raise LookupError(how)


@pytest.fixture
def entry(reports: Reports) -> Iterator[str]:
    with registry.isolated():
        registry.add(cast("Any", nightly))
        yield Cron("30 4 * * *", nightly.bind(), name="sentry.daily", tz="Europe/Paris").name


def _declare(name: str, expression: str | None = None, every: Any = None) -> None:
    Cron(expression, nightly.bind(), name=name, every=every)


def statuses(reports: Reports) -> list[tuple[str, str]]:
    return [(each["monitor_slug"], each["status"]) for each in reports.check_ins()]


def test_a_fire_checks_in_and_ends_under_one_id(reports: Reports, entry: str) -> None:
    fire(entry, nightly.register())
    run_jobs()
    assert statuses(reports) == [("sentry-daily", "in_progress"), ("sentry-daily", "ok")]
    begun, ended = reports.check_ins()
    assert begun["check_in_id"] == ended["check_in_id"]
    assert begun["monitor_config"] == ended["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "30 4 * * *"},
        "timezone": "Europe/Paris",
        "max_runtime": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("once", ["in_progress", "in_progress", "ok"]),
        ("fails", ["in_progress", "in_progress", "in_progress", "error"]),
        ("abandon", ["in_progress", "error"]),
        ("cancel", ["in_progress", "ok"]),
        ("snooze", ["in_progress"]),
    ],
)
def test_a_fire_is_in_progress_until_its_job_has_ended(reports: Reports, entry: str, how: str, said: list[str]) -> None:
    """A retried attempt is no error yet; each attempt renews the time."""
    fire(entry, nightly.register(how))
    run_jobs()
    assert [status for _, status in statuses(reports)] == said
    assert len({each["check_in_id"] for each in reports.check_ins()}) == 1


def test_jobs_without_an_entry_do_not_check_in(reports: Reports, entry: str) -> None:
    nightly.register()
    run_jobs()
    assert reports.check_ins() == []


def test_two_fires_have_two_ids(reports: Reports, entry: str) -> None:
    for _ in range(2):
        fire(entry, nightly.register())
    run_jobs()
    assert len({each["check_in_id"] for each in reports.check_ins()}) == 2


def test_an_entry_that_other_code_declares_checks_in_without_a_schedule(reports: Reports, entry: str) -> None:
    fire("made at run time", nightly.register())
    run_jobs()
    assert [status for _, status in statuses(reports)] == ["in_progress", "ok"]
    assert "monitor_config" not in reports.check_ins()[0]


@pytest.mark.parametrize(
    ("declared", "schedule"),
    [
        ({"expression": "@midnight"}, {"type": "crontab", "value": "@daily"}),
        ({"expression": "*/5 * * * mon-fri"}, {"type": "crontab", "value": "*/5 * * * mon-fri"}),
        ({"every": "2 weeks"}, {"type": "interval", "value": 2, "unit": "week"}),
        ({"every": 5400}, {"type": "interval", "value": 90, "unit": "minute"}),
    ],
)
def test_schedules_are_told_in_the_words_of_sentry(reports: Reports, entry: str, declared: Any, schedule: Any) -> None:
    _declare("other", **declared)
    config = checkins.monitor_config("other", None)
    assert config == {"schedule": schedule, "timezone": "UTC"}


@pytest.mark.parametrize("declared", [{"expression": "*/5 * * * * 30"}, {"every": 90}])
def test_entries_with_seconds_do_not_check_in_which_is_said_once(
    reports: Reports, entry: str, declared: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_pgjobs")
    _declare("fast", **declared)
    for _ in range(2):
        fire("fast", nightly.register())
    run_jobs()
    assert reports.check_ins() == []
    assert len([message for message in caplog.messages if "does not check in" in message]) == 1


@pytest.mark.parametrize("name", ["shop.Nightly", "a b", "1234", "x" * 60, HOSTILE[:5000], "…", ""])
def test_names_that_sentry_does_not_allow_get_a_hash(name: str) -> None:
    slug = checkins.slug_of(name)
    assert re.fullmatch(r"[a-z0-9_-]{1,50}", slug)
    assert slug.rpartition("-")[2] not in name
    assert slug != checkins.slug_of(f"{name}!")


def test_a_transaction_in_doubt_says_nothing() -> None:
    assert checkins._status_of(decide.InDoubt(decide.Abandoned("no attempts left"))) is None
    assert checkins._status_of(decide.Committed(stepped=True)) is None
    assert checkins._status_of(decide.Committed()) == "ok"


def test_an_entry_of_each_database_has_a_monitor_in_each(reports: Reports, entry: str) -> None:
    """Else a database whose schedule stands still is hidden by the others; and ids repeat between them."""
    Cron("@daily", nightly.bind(), name="each", each_database=True)
    fire("each", nightly.register())
    run_jobs()
    assert statuses(reports) == [(checkins.slug_of("each default"), status) for status in ("in_progress", "ok")]
    begun, ended = reports.check_ins()
    assert begun["check_in_id"] == ended["check_in_id"]
