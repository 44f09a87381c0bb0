"""``pgjobs check --in-flight``: what waits in the database, against code that has changed since."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection
from django.test import override_settings

from django_pgjobs import Batch, Cron, Event, Flow, JobContext, Limit, Next, job
from django_pgjobs.diagnosis import in_flight
from django_pgjobs.durable import known_events
from django_pgjobs.management import in_flight as shell
from django_pgjobs.models import CronEntry, Heartbeat, Job
from django_pgjobs.store import surveying
from django_pgjobs.store.database import is_read_only
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.plugins.shell import BEAT, pgjobs

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry", "quiet")]


def checked(*options: object, status: int) -> dict[str, Any]:
    exited, out, _ = pgjobs("check", "--in-flight", "--format", "json", *options)
    found: dict[str, Any] = json.loads(out)
    assert (exited, found["fits"]) == (status, not status), out
    return found


def problems(*options: object, status: int = 1) -> list[tuple[str, str]]:
    return [(each["code"], each["name"]) for each in checked(*options, status=status)["problems"]]


def declare(name: str, func: Callable[..., Any], **options: Any) -> Any:
    return job(name=name, **options)(func)


def nothing() -> None: ...


def one(n: int) -> None: ...


def two(n: int, currency: str) -> None: ...


def anything(*args: Any) -> None: ...


def other(m: int) -> None: ...


def in_context(context: JobContext, n: int) -> None: ...


def charge(n: int) -> int:
    return n


def charge_card(n: int) -> int:
    return n


def set_row(row: Any, column: str, value: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgjobs_job SET {column} = %s WHERE id = %s", [value, row.pk])


def stored(name: str = "f.job", **payload: Any) -> Any:
    row = declare(name, one).register(1)
    set_row(row, "payload", json.dumps(payload))
    return row


def heart(queues: list[str]) -> Any:
    return Heartbeat.objects.create(**{**BEAT, "queues": queues, "excluded_queues": []})


def step_old(context: JobContext) -> None:
    context.step(charge, 1)
    context.sleep(3600)


def step_new(context: JobContext) -> None:
    context.step(charge_card, 1)
    context.sleep(3600)


def sleep_new(context: JobContext) -> None:
    context.step(charge, 1)
    context.sleep(3600, name="an hour")


def version_old(context: JobContext) -> None:
    context.version("carrier", 1)
    context.sleep(3600)


def version_new(context: JobContext) -> None:
    context.version("carriers", 1)
    context.sleep(3600)


def each_old(context: JobContext) -> None:
    for _ in context.each([1, 2, 3], name="rows", every=1):
        context.sleep(3600, name="between")


def each_new(context: JobContext) -> None:
    for _ in context.each([1, 2, 3], name="lines", every=1):
        context.sleep(3600, name="between")


def gather_old(context: JobContext) -> None:
    member = declare("f.member", one)
    context.gather([member.using(delay=3600).bind(1)], name="prices")


def gather_new(context: JobContext) -> None:
    context.gather([], name="offers")


def ran(name: str, func: Callable[..., Any]) -> None:
    declare(name, func, takes_context=True).register()
    run_jobs()


approval = Event[dict[str, int]]("f.approval")


def waits(context: JobContext) -> None:
    context.wait_for(approval, 7, timeout=3600)


def undone(context: JobContext) -> None:
    refund = declare("f.refund", in_context, takes_context=True)
    context.step.using(undo=refund)(charge, 1)
    context.sleep(3600)


def scheduled(name: str, func: Callable[..., Any], *args: Any) -> None:
    declare(name, func, schedulable=True).schedule("0 3 * * *", name=f"{name} nightly").register(*args)


def ending(name: str) -> None:
    made = declare(name, one)
    made.on_cancel(in_context)
    made.using(delay=60).register(1).cancel()


def member(**options: Any) -> None:
    with Batch("two") as batch:
        batch.add(declare("f.job", one).using(delay=3600, **options).bind(1))


def passed_on() -> None:
    first, second = declare("f.first", charge), declare("f.job", one)
    flow = Flow("a flow")
    flow.add(second.bind(flow.add(first.using(delay=3600).bind(1)).result))
    flow.register()


def in_turn() -> None:
    made = declare("f.job", one, sequence="line")
    made.using(delay=3600).register(1)
    made.using(delay=3600).register(2)


def declared_cron(**override: object) -> None:
    declare("f.job", nothing)
    entry = CronEntry(
        name="f.cron", job_name="f.job", declared_expression="0 3 * * *", declared_zone="UTC",
        declared_payload={"args": [], "kwargs": {}}, declared_options={}, **override,
    )  # fmt: skip
    CronEntry.objects.bulk_create([entry])


def with_cron() -> None:
    declare("f.job", nothing, cron=Cron("0 3 * * *", name="f.cron"))


def same() -> None:
    declare("f.job", one)


def stepped() -> None:
    following = declare("f.next", nothing)

    def first() -> Next:
        return Next(following.bind(), delay=3600)

    declare("f.stepping", first).register()
    run_jobs()


_kept: list[Any] = []


def typed(name: str) -> None:
    _kept.append(Event[int](name))


Fault = tuple[str, Callable[[], object], Callable[[], object], tuple[str, str], str, str]

FAULTS: list[Fault] = [
    ("a name", lambda: declare("f.job", one).register(1), lambda: declare("g.job", one),
     ("unknown", "f.job"), "No job named 'f.job'", 'aliases=["f.job"] on g.job'),
    ("a limited job's name", lambda: declare("f.job", one, limits=Limit(1)).register(1), lambda: None,
     ("unknown", "f.job"), "No job named 'f.job'", "aliases"),
    ("a member's name", member, lambda: None, ("unknown", "f.job"), "No job named", "aliases"),
    ("the next step", stepped, lambda: declare("f.stepping", nothing),
     ("unknown", "f.next"), "No job named", "aliases"),
    ("a new parameter", lambda: declare("f.job", one).register(1), lambda: declare("f.job", two),
     ("arguments", "f.job"), "missing 1 required positional argument: 'currency'", "give parameter currency a default"),
    ("another name", lambda: declare("f.job", one).register(n=1), lambda: declare("f.job", other),
     ("arguments", "f.job"), "unexpected keyword argument 'n'", "take parameter n again"),
    ("too many", lambda: declare("f.job", two).register(1, "EUR"), same,
     ("arguments", "f.job"), "takes 1 positional argument but 2 were given", "take 2 positional arguments again"),
    ("in a sequence", in_turn, lambda: declare("f.job", two, sequence="line"),
     ("arguments", "f.job"), "missing 1 required", "give parameter currency a default"),
    ("in a flow", passed_on, lambda: (declare("f.first", charge), declare("f.job", two)),
     ("arguments", "f.job"), "missing 1 required", "give parameter currency a default"),
    ("a value", lambda: stored(args=[{"$decimal": "x"}], kwargs={}), same,
     ("payload", "f.job"), "$decimal holds no decimal", "code that wrote them"),
    ("a newer value", lambda: stored(args=[{"$money": 1}], kwargs={}), same,
     ("payload", "f.job"), "unknown kind of value '$money'", "code that wrote them"),
    ("another form", lambda: stored(arguments=[1]), same, ("payload", "f.job"), "A payload is a JSON object", "wrote"),
    ("headers", lambda: set_row(declare("f.job", one).register(1), "headers", '{"a": {"$date": "x"}}'), same,
     ("payload", "f.job"), "$date holds no date", "wrote"),
    ("a limit", lambda: declare("f.job", one, limits=Limit(1)).register(1), same,
     ("limit", "f.job"), "this code has none", "keep the Limit"),
    ("a limit of keys", lambda: declare("f.job", one, limits=Limit(1, key="k{n}")).register(1), same,
     ("limit", "f.job"), "no limit of keys", "keep the Limit"),
    ("the kind of a limit", lambda: declare("f.job", one, limits=Limit(1)).register(1),
     lambda: declare("f.job", one, limits=Limit(1, key="k{n}")),
     ("limit", "f.job"), "none for them but one with a key", "keep the Limit"),
    ("the key of a limit", lambda: declare("f.job", one, limits=Limit(1, key="k{n}")).register(1),
     lambda: declare("f.job", one, limits=Limit(1, key="customer{n}")),
     ("limit_key", "f.job"), "customer{n}", "both keys"),
    ("a queue", lambda: (heart(["other"]), declare("f.job", one, queue="mail").register(1)),
     lambda: declare("f.job", one, queue="mail"), ("queue", "f.job"), "serves queue mail", "start a worker"),
    ("a step", lambda: ran("f.job", step_old), lambda: declare("f.job", step_new, takes_context=True),
     ("memo", "f.job"), "the step 'charge'", 'context.step.using(name="charge")'),
    ("a sleep", lambda: ran("f.job", step_old), lambda: declare("f.job", sleep_new, takes_context=True),
     ("memo", "f.job"), "the sleep 'sleep'", 'name="sleep"'),
    ("a version", lambda: ran("f.job", version_old), lambda: declare("f.job", version_new, takes_context=True),
     ("memo", "f.job"), "the version 'carrier'", 'context.version("carrier"'),
    ("a walk", lambda: ran("f.job", each_old), lambda: declare("f.job", each_new, takes_context=True),
     ("memo", "f.job"), "the each 'rows'", 'name="rows"'),
    ("a gather", lambda: ran("f.job", gather_old),
     lambda: (declare("f.job", gather_new, takes_context=True), declare("f.member", one)),
     ("memo", "f.job"), "the gather 'prices'", 'name="prices"'),
    ("an undo", lambda: ran("f.job", undone), lambda: declare("f.job", undone, takes_context=True),
     ("undo", "f.job"), "No job named 'f.refund'", 'aliases=["f.refund"]'),
    ("an undo's arguments", lambda: ran("f.job", undone),
     lambda: (declare("f.job", undone, takes_context=True), declare("f.refund", two)),
     ("undo", "f.job"), "missing 1 required", "give parameter currency a default"),
    ("a callback", lambda: ending("f.job"), same, ("callback", "f.job"), "no on_cancel", "keep"),
    ("a callback's job", lambda: ending("f.job"), lambda: None, ("unknown", "f.job"), "No job named", "aliases"),
    ("an event", lambda: ran("f.job", waits),
     lambda: (declare("f.job", waits, takes_context=True), known_events.pop("f.approval")),
     ("event", "f.job"), "declares no event 'f.approval'", 'Event("f.approval")'),
    ("a payload of an event", lambda: Event[str]("f.typed").send(7, payload="yes"), lambda: typed("f.typed"),
     ("event_payload", "f.typed"), "payload", "withdraw"),
    ("the job of a schedule", lambda: scheduled("f.job", one, 1), lambda: None,
     ("cron", "f.job nightly"), "No job named 'f.job'", "aliases"),
    ("the arguments of a schedule", lambda: scheduled("f.job", one, 1), lambda: declare("f.job", two, schedulable=True),
     ("cron", "f.job nightly"), "missing 1 required", "give parameter currency a default"),
    ("arguments instead", lambda: declared_cron(payload={"args": [1], "kwargs": {}}), with_cron,
     ("cron", "f.cron"), "takes 0 positional arguments", "take 1 positional"),
    ("arguments of no form", lambda: declared_cron(payload={"args": 5, "kwargs": {}}), with_cron,
     ("cron", "f.cron"), "args", "correct it"),
    ("an expression instead", lambda: declared_cron(expression="99 * * * *"), with_cron,
     ("cron", "f.cron"), "99", "correct it"),
    ("a declaration", declared_cron, lambda: declare("f.job", nothing),
     ("cron_missing", "f.cron"), "No code declares it", "declare it"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _events() -> Iterator[None]:
    before = dict(known_events)
    yield
    known_events.clear()
    known_events.update(before)
    _kept.clear()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_a_planted_fault_is_found_and_named(fault: Fault) -> None:
    _, plant, deploy, expected, text, cure = fault
    plant()
    with isolated_registry():
        deploy()
        found = checked(status=1)["problems"]
    [each] = [each for each in found if (each["code"], each["name"]) == expected]
    assert text in each["text"]
    assert cure in each["cure"]
    assert each["jobs"] >= 1
    assert each["ids"]
    assert len(found) == 1


def everything() -> None:
    """One job of each kind, as code that has not changed left them."""
    many = declare("f.many", two, limits=[Limit(5), Limit(1, key="k{n}")])
    many.register_many([(n, "EUR") for n in range(10)])
    declare("f.plain", one).register(n=1)
    declare("f.values", one).register(Decimal("1.5"))
    declare("f.steps", undone, takes_context=True).register()
    declare("f.each", each_old, takes_context=True).register()
    declare("f.gather", gather_old, takes_context=True).register()
    declare("f.version", version_old, takes_context=True).register()
    declare("f.waits", waits, takes_context=True).register()
    run_jobs(limit=100)
    stepped()
    passed_on()
    ending("f.ending")
    declare("f.line", one, sequence="line").using(delay=3600).register_many([(1,), (2,)])
    with Batch("two") as batch:
        batch.add(declare("f.in_batch", one).using(delay=3600).bind(1))
    declare("f.cron", nothing, cron=Cron("0 3 * * *", name="f.cron"))
    declared = CronEntry(
        name="f.cron", job_name="f.cron", declared_expression="0 3 * * *", declared_zone="UTC",
        declared_payload={"args": [], "kwargs": {}}, declared_options={},
    )  # fmt: skip
    CronEntry.objects.bulk_create([declared])
    scheduled("f.nightly", one, 1)
    approval.send(8, payload={"by": 1})


def test_nothing_is_found_where_the_code_has_not_changed() -> None:
    everything()
    heart(["default"])
    found = checked(status=0)
    assert (found["problems"], found["notes"]) == ([], [])
    assert found["read"] == {
        "jobs": Job.objects.filter(finished_at=None).count(), "schedules": 2, "events": 1, "all": True,
    }  # fmt: skip
    assert found["read"]["jobs"] > 15


def test_an_alias_and_a_default_are_cures() -> None:
    declare("f.job", one).register(1)
    with isolated_registry():

        def cured(n: int, currency: str = "EUR") -> None: ...

        declare("g.job", cured, aliases=["f.job"])
        assert problems(status=0) == []


def test_what_is_allowed_is_a_note() -> None:
    declare("f.job", one).register(1)
    declare("f.other", one).register(1)
    with isolated_registry():
        assert problems() == [("unknown", "f.job"), ("unknown", "f.other")]
        assert problems("--allow", "f.job") == [("unknown", "f.other")]
        assert problems("--allow", "arguments:f.job", "--allow", "unknown:f.other") == [("unknown", "f.job")]
        found = checked("--allow", "unknown:f.job", "--allow", "f.other", status=0)
        assert [each["name"] for each in found["notes"]] == ["f.job", "f.other"]


def test_a_queue_and_a_number_narrow_the_look() -> None:
    declare("f.job", one).register(1)
    declare("f.mail", one, queue="mail").register(1)
    with isolated_registry():
        assert problems("--queue", "mail") == [("unknown", "f.mail")]
        found = checked("--most", 1, status=1)
        assert found["read"]["all"] is False
        assert found["read"]["jobs"] == 1


def test_a_queue_without_workers_is_judged_by_the_setting() -> None:
    declare("f.job", one, queue="mail").register(1)
    assert problems(status=0) == []
    with override_settings(PGJOBS={"QUEUES": ["default"]}), isolated_registry():
        declare("f.job", one)
        assert problems() == [("queue", "f.job")]


def test_names_that_are_made_as_it_runs_are_a_note() -> None:
    ran("f.job", step_old)

    def made(context: JobContext, prefix: str = "") -> None:
        context.step.using(name=f"{prefix}card")(charge_card, 1)
        context.sleep(3600)

    with isolated_registry():
        declare("f.job", made, takes_context=True)
        found = checked(status=0)
        assert [(each["code"], each["name"]) for each in found["notes"]] == [("memo_open", "f.job")]


def test_names_in_other_functions_and_constants_are_found() -> None:
    def helper(context: JobContext) -> None:
        context.step.using(name=NAMED)(charge_card, 1)

    def made(context: JobContext) -> None:
        helper(context)
        context.sleep(3600)

    ran("f.job", step_old)
    with isolated_registry():
        declare("f.job", made, takes_context=True)
        assert problems(status=0) == []


NAMED = "charge"


def test_a_new_limit_is_a_note() -> None:
    declare("f.job", one).register(1)
    with isolated_registry():
        declare("f.job", one, limits=Limit(1))
        assert [each["code"] for each in checked(status=0)["notes"]] == ["limit_new"]


def test_the_lines_say_what_would_happen_and_the_cure() -> None:
    rows = [declare("f.job", one).register(1) for _ in range(7)]
    with isolated_registry():
        declare("f.job", two)
        status, out, _ = pgjobs("check", "--in-flight")
    first, second, last = out.splitlines()
    ids = ", ".join(f"#{row.pk}" for row in rows[:5])
    assert status == 1
    assert first == (
        "arguments: f.job: 7 would park: The stored arguments do not fit: f.job() missing 1 required positional "
        "argument: 'currency'"
    )
    assert second.startswith(f"  {ids}, …, the oldest of ")
    assert second.endswith("Cure: give parameter currency a default.")
    assert last == "Looked at 7 jobs, 0 schedules, 0 unread events: some do not fit this code."


def test_it_looks_once() -> None:
    with pytest.raises(CommandError, match="looks once"):
        pgjobs("check", "--in-flight", "--watch", "1")


def test_slices_meet_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveying, "SLICE", 3)
    for priority in (-5, 0, 5):
        declare(f"f.job{priority}", one, priority=priority).register_many([(n,) for n in range(5)])
    declare("f.limited", one, limits=Limit(1)).register_many([(n,) for n in range(7)])
    assert checked(status=0)["read"]["jobs"] == 22
    with isolated_registry():
        found = checked(status=1)["problems"]
    assert {each["name"]: each["jobs"] for each in found} == {
        "f.job-5": 5, "f.job0": 5, "f.job5": 5, "f.limited": 7,
    }  # fmt: skip


def test_kinds_of_findings_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MOST_FINDINGS", 3)
    for n in range(9):
        declare(f"f.job{n}", one).register(1)
    with isolated_registry():
        found = checked(status=1)["problems"]
    assert sum(each["jobs"] for each in found) == 9
    assert [each["name"] for each in found].count("…") == 1


def test_what_was_parked_before_is_a_note() -> None:
    """No deploy does that, and one such row may not keep all pipelines red."""
    parked, waiting = declare("f.job", one).register(1), declare("f.job", one).register(2)
    set_row(parked, "hold", "parked")
    with isolated_registry():
        declare("f.job", two)
        found = checked(status=1)
        assert [each["ids"] for each in found["problems"]] == [[waiting.pk]]
        assert [each["ids"] for each in found["notes"]] == [[parked.pk]]


def test_our_own_queue_is_served_by_every_worker() -> None:
    with Batch("many", undo=True) as batch:
        batch.add(declare("f.job", one).using(delay=3600).bind(1))
    set_row(batch.job, "queue", "pgjobs")
    with override_settings(PGJOBS={"QUEUES": ["default"]}):
        assert problems(status=0) == []


def test_the_undo_of_a_job_that_has_ended_is_bound_too() -> None:
    refund = declare("f.refund", in_context, takes_context=True)

    def fails(context: JobContext) -> None:
        context.step.using(undo=refund)(charge, 1)
        raise ValueError("no")

    registered = declare("f.order", fails, takes_context=True, max_attempts=1).register()
    while registered.outcome is None:
        run_jobs(limit=1)
        registered.refresh_from_db()
    assert problems(status=0) == []
    with isolated_registry():
        declare("f.order", fails, takes_context=True)
        assert problems(status=1) == [("undo", "f.order")]


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 3000 + "]" * 3000], ids=["long", "deep"])
def test_a_value_that_python_does_not_read_is_a_finding(value: str) -> None:
    """Versions of Python differ in how deep they read: what this one reads, its worker takes too."""
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        expected = ["payload"]
    else:
        expected = []
    row = declare("f.job", one).register(1)
    set_row(row, "payload", '{"args": [{"$result": 1}, ' + value + '], "kwargs": {}}')
    with isolated_registry():
        declare("f.job", anything)
        assert [code for code, _ in problems(status=len(expected))] == expected


def test_it_only_reads() -> None:
    """The server itself refuses a write in its transaction."""
    seen: list[bool] = []

    class Spy(in_flight.Survey):
        def run(self, most: int | None = None) -> Any:
            seen.append(is_read_only(self.db))
            return super().run(most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell, "Survey", Spy)
        assert problems(status=0) == []
    assert seen == [True]


class Lazy:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


LAZY: Any = Lazy()


def test_an_object_that_answers_no_question_leaves_names_open() -> None:
    ran("f.job", step_old)

    def made(context: JobContext) -> None:
        context.step(charge_card, LAZY)
        context.sleep(3600)

    with isolated_registry():
        declare("f.job", made, takes_context=True)
        found = checked(status=0)
        assert [(each["code"], each["name"]) for each in found["notes"]] == [("memo_open", "f.job")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """The seconds are printed: they are the machine's."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO pgjobs_job (name, queue, priority, hold, limit_key, flow, payload, options)
            SELECT
                'f.name' || n %% 20, 'q' || n %% 5, n %% 3, CASE WHEN n %% 10 = 0 THEN 'limited' END,
                CASE WHEN n %% 10 = 0 THEN '' END, CASE WHEN n %% 50 = 0 THEN 32 ELSE 0 END,
                CASE n %% 4
                    WHEN 0 THEN jsonb_build_object('args', jsonb_build_array(n), 'kwargs', '{}'::jsonb)
                    WHEN 1 THEN jsonb_build_object('args', '[]'::jsonb, 'kwargs', jsonb_build_object('n', n))
                    WHEN 2 THEN jsonb_build_object(
                        'args', '[]'::jsonb, 'kwargs', jsonb_build_object('n', n, 'currency', 'EUR', 'note', 'x'))
                    ELSE jsonb_build_object(
                        'args', jsonb_build_array(jsonb_build_object('$decimal', n::text)), 'kwargs', '{}'::jsonb)
                END,
                NULL
            FROM generate_series(1, 1000000) AS n
            """.replace("%%", "%")
        )
        cursor.execute(
            "INSERT INTO pgjobs_memo (job_id, name, kind, finished_at) "
            "SELECT id, 'charge', 'step', statement_timestamp() FROM pgjobs_job WHERE flow = 32"
        )
        cursor.execute("ANALYZE pgjobs_job, pgjobs_memo")

    def fits(context: JobContext, n: int, currency: str = "", note: str = "") -> None:
        context.step(charge, n)

    for n in range(20):
        if n != 7:
            declare(f"f.name{n}", fits, takes_context=True, limits=Limit(5))
    began = time.perf_counter()
    found = checked(status=1)
    seconds = time.perf_counter() - began
    assert [(each["code"], each["name"], each["jobs"]) for each in found["problems"]] == [
        ("unknown", "f.name7", 50_000)
    ]
    assert found["read"]["jobs"] == 1_000_000
    with capsys.disabled():
        sys.stdout.write(f"\na million jobs in {seconds:.1f} s\n")
