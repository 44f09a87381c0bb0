"""The public surface as a type checker sees it; mypy and pyright must find nothing (``test_typing``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, assert_type

from django_pgjobs import (
    Backoff,
    Batch,
    Cron,
    Event,
    Flow,
    JobContext,
    Next,
    Snooze,
    Unique,
    current_context,
    job,
    register_many,
)
from django_pgjobs.canvas import Canvas, chain, chord, group
from django_pgjobs.durable import Settled
from django_pgjobs.exceptions import Release
from django_pgjobs.flows.flow import Node
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.models import CronEntry, Job, JobQuerySet, QueueState
from django_pgjobs.queues import Queue, QueueStatus
from django_pgjobs.schedules import BoundSchedule
from django_pgjobs.steering.batching import Steered
from django_pgjobs.tasks import enqueue_many, job_of, policy, result_of
from django_pgjobs.testing import Ran, context, crash_at, replay, run_jobs, send_event

if TYPE_CHECKING:
    from django_pgjobs.jobs import JobOf

P = ParamSpec("P")
R = TypeVar("R")


@job
def plain(user_id: int, *, greeting: str = "hello") -> str:
    return f"{greeting} {user_id}"


@job(
    name="shop.send",
    aliases=["shop.old_send"],
    queue="mail",
    priority=10,
    max_attempts=3,
    backoff=Backoff(15, factor=4, limit=timedelta(hours=1)),
    retry_on=(OSError, TimeoutError),
    give_up_on=lambda error: isinstance(error, PermissionError),
    timeout=timedelta(minutes=5),
    store_result=False,
    atomic=True,
    sensitive=["address"],
)
def send(address: str) -> None: ...


@job(backoff=lambda error, attempt: None if attempt > 3 else timedelta(seconds=attempt), retry_on=OSError, timeout=None)
async def fetch(url: str) -> int:
    raise Snooze(5)


@job
async def goes_on(url: str) -> Next | None:
    return Next(send.using(queue="web").bind(url), delay=timedelta(seconds=5)) if url else None


@job(unique=Unique("sync:{user_id}", until="started", on_conflict="postpone"), idempotency_key=lambda user_id: None)
def keyed(user_id: int) -> None: ...


@job(takes_context=True, queue="mail")
def with_context(context: JobContext, path: str) -> int:
    context.progress(1, 2, "half")
    return context.attempt


@job
def annotated(context: JobContext, path: str) -> int:
    return context.attempt


@job(queue="mail", description="look at {path}")
async def annotated_with_options(context: JobContext, path: str, *, often: bool = False) -> str:
    return path


@job(description=lambda user_id: f"greet {user_id}")
def described(user_id: int) -> None: ...


@job(cron=Cron("*/10 * * * *", tz="Europe/Paris", misfire="all", misfire_limit=3))
def swept() -> None: ...


@job(cron=[Cron("@daily", name="daily"), Cron("@weekly", name="weekly", overlap="skip")])
def swept_twice() -> None: ...


@job(takes_context=False)
def without_context(path: str) -> None: ...


@job(takes_context=True)
def goes_through(context: JobContext) -> None:
    for one in context.each(Job.objects.filter(queue="mail"), key="pk", every=10, atomic=True):
        assert_type(one, Job)
    for path in context.each(["a", "b"], name="paths", total=2):
        assert_type(path, str)


@job(takes_context=True)
async def goes_through_async(context: JobContext) -> None:
    async for one in context.aeach(Job.objects.all()):
        assert_type(one, Job)
    raise Release


@send.on_abandon
def apologise(context: JobContext, address: str) -> None: ...


@send.on_cancel
async def forget(context: JobContext, address: str) -> None: ...


@with_context.on_abandon
def clean(context: JobContext, path: str) -> None: ...


def calls(context: JobContext) -> None:
    assert_type(plain(7, greeting="hi"), str)
    assert_type(with_context(context, "x"), int)
    assert_type(annotated(context, "x"), int)
    assert_type(apologise(context, "a@example.org"), None)
    assert_type(current_context(), JobContext)


def registering(when: datetime) -> None:
    assert_type(plain.register(7), JobOf[str])
    assert_type(plain.register(user_id=7, greeting="hi"), JobOf[str])
    assert_type(with_context.register("x"), JobOf[int])
    assert_type(annotated.register("x"), JobOf[int])
    assert_type(annotated.register(path="x"), JobOf[int])
    assert_type(annotated_with_options.using(delay=1).register("x", often=True).value(), str)
    described.register(7)
    assert_type(
        keyed.using(unique=Unique("k", window=60, on_conflict="raise"), idempotency_key=None).register(7), JobOf[None]
    )
    assert_type(
        keyed.using(unique=Unique(lambda user_id: f"u{user_id}", window=timedelta(hours=1))).bind(7), BoundJob[None]
    )
    assert_type(plain.using(delay=60, queue="bulk").register(7, greeting="hi"), JobOf[str])
    assert_type(plain.using(description="Greet Ann").register(7), JobOf[str])
    assert_type(plain.using(run_at=when, timeout=None).using(database="default", priority=-5).register(7), JobOf[str])
    assert_type(plain.register_many([(7,), {"user_id": 8}]), list[int])
    assert_type(with_context.using(max_attempts=1).register_many([("x",)]), list[int])


def asking_for_values() -> None:
    assert_type(plain.register(7).value(timeout=5), str)
    assert_type(plain.using(delay=timedelta(seconds=1)).register(7).value(), str)
    assert_type(fetch.register("https://example.org").value(timedelta(seconds=5)), int)
    assert_type(plain.bind(7).register().value(), str)
    jobs: list[Job] = [plain.register(7), with_context.register("x")]
    assert_type([found.value() for found in jobs], list[Any])


async def asking_for_values_async() -> None:
    assert_type(await (await plain.aregister(7)).avalue(timeout=5), str)
    assert_type(await fetch.register("https://example.org").avalue(), int)


def binding() -> None:
    assert_type(plain.bind(7), BoundJob[str])
    assert_type(plain.using(delay=timedelta(hours=1)).bind(7).using(queue="bulk"), BoundJob[str])
    assert_type(plain.bind(7).register(), JobOf[str])
    calls: list[BoundJob] = [plain.bind(7), send.bind("a@example.org")]
    assert_type(register_many(calls), list[int])
    assert_type(register_many([plain.bind(7), send.bind("a@example.org")], database="default"), list[int])


@job
def add_up(numbers: list[int], title: str) -> int:
    return sum(numbers) + len(title)


def waiting_for_others() -> None:
    flow = Flow("report", key="report:May")
    pages = [flow.add(fetch.bind(url)) for url in ("a", "b")]
    title = flow.add(plain.bind(7))
    assert_type(pages[0], Node[int])
    assert_type(title.result, str)
    total = flow.add(add_up.bind([page.result for page in pages], title.result), after=pages)
    assert_type(total.result, int)
    flow.add(send.bind("a@example.org"), after=[*pages, title, total], when="failed")
    assert_type(flow.register(), Job)
    with Batch("letters", succeeded=plain.bind(7), fail_fast=True) as batch:
        assert_type(batch.add_many(plain.bind(number) for number in range(3)), int)
    assert_type(batch.figures.pending, int)
    assert_type(plain.using(after=[flow.register(), 7], when="settled").register(7), JobOf[str])
    steps = chain(plain.bind(7), group(group_of_calls()), chord(group_of_calls(), plain.bind(7)))
    assert_type(steps, Canvas)
    assert_type(steps.register(), Job)


async def pausing() -> None:
    mail = Queue("mail")
    assert_type(mail.pause(by="anna", until=timedelta(hours=1)), QueueState)
    assert_type(mail.paused, QueueState | None)
    assert_type(mail.resume(), bool)
    assert_type(plain.pause(reason="wrong"), QueueState)
    assert_type(await plain.aresume(), bool)
    assert_type(mail.status(), QueueStatus)
    assert_type(mail.job(7), Job)
    assert_type(mail.jobs("parked"), JobQuerySet)
    assert_type(await mail.ajobs(), JobQuerySet)
    assert_type(mail.cancel("welcome:7"), Steered)


def group_of_calls() -> list[BoundJob]:
    return [plain.bind(1), fetch.bind("a")]


async def awaiting(context: JobContext) -> None:
    assert_type(await fetch("https://example.org"), int)
    assert_type(await forget(context, "a@example.org"), None)


async def registering_async() -> None:
    assert_type(await (await fetch.aregister("https://example.org")).avalue(), int)
    assert_type(await plain.using(delay=1).aregister(7), JobOf[str])
    assert_type(await plain.bind(7).aregister(), JobOf[str])
    assert_type(await plain.aregister_many([(7,)]), list[int])


def operating() -> None:
    jobs = Job.objects.filter(state="ready")
    assert_type(jobs, JobQuerySet)
    assert_type(jobs.cancel(mode="kill", reason="by mistake"), Steered)
    assert_type(Job.objects.exclude(state="ready").order_by("pk").using("x").reschedule(delay=5), Steered)
    assert_type(Job.objects.all().abandon(), Steered)
    assert_type(Job.objects.using("default").retry(), Steered)
    assert_type(Job.objects.get(pk=1), Job)
    assert_type(Job.objects.get(pk=1).release(), Steered)
    assert_type(jobs.first(), Job | None)
    assert_type(Job.objects.count(), int)
    assert_type(list(jobs), list[Job])


def steering(definition: JobDefinition[[int], str]) -> None:
    assert_type(definition(7), str)
    assert_type(definition.register(7), JobOf[str])
    assert_type(definition.name, str)
    assert_type(definition.timeout, float | None)
    assert_type(definition.is_async, bool)


Cron("0 3 * * *", fetch.bind("https://example.org"), name="fetch by night", tz="Europe/Paris")
Cron(call=fetch.bind("https://example.org"), every="2 weeks", anchor="2026-01-05 07:00", name="every two weeks")


async def schedules(definition: JobDefinition[[int], str]) -> None:
    weekly = definition.schedule("0 7 * * 1", name="report:acme", tz="Europe/Berlin", max_fires=3, by="ann")
    assert_type(weekly, BoundSchedule[[int]])
    assert_type(weekly.register(7), CronEntry)
    assert_type(await definition.using(priority=3).schedule(every=2700, name="rates").aregister(7), CronEntry)
    weekly.register("7")  # type: ignore[arg-type]
    definition.schedule("@daily", name="x", misfire="never")  # type: ignore[arg-type]


class Charge(TypedDict):
    id: str


class Verdict(TypedDict):
    by: str


approval: Event[Verdict] = Event("order.approval")


def charge(order_id: int, *, currency: str = "EUR") -> Charge:
    return {"id": f"{order_id} {currency}"}


async def acharge(order_id: int) -> Charge:
    return charge(order_id)


@plain.undo(max_attempts=20, queue="money")
def not_plain(context: JobContext, user_id: int, *, greeting: str = "hello") -> None:
    assert_type(context.target.id, str)
    assert_type(context.is_compensation, bool)


@job(takes_context=True)
def refund(context: JobContext, order_id: int) -> None: ...


def remembering(context: JobContext) -> None:
    assert_type(context.step(charge, 7, currency="CHF"), Charge)
    assert_type(context.step.using(name="charge", key=7, attempts=5, backoff=Backoff(2))(charge, 7), Charge)
    assert_type(context.step.using(atomic=True, undo=refund)(charge, 7)["id"], str)
    assert_type(context.step(plain, 7), str)
    context.sleep(timedelta(days=3))
    context.sleep(60, name="a minute")
    assert_type(context.wait_for(approval, 7, timeout=timedelta(days=14)), Verdict)
    assert_type(context.wait_for("paid", timeout=60), Any)
    assert_type(context.version("fast-path", 2), int)
    assert_type(context.gather([plain.bind(number) for number in range(3)]), list[str])
    assert_type(context.gather([fetch.bind("a")], name="pages"), list[int])
    settled = context.gather([plain.bind(7)], settled=True)
    assert_type(settled, list[Settled[str]])
    assert_type(settled[0].result, str | None)
    assert_type(context.gather([fetch.bind("a")], settled=True), list[Settled[int]])
    assert_type(approval.send(7, payload={"by": "ann"}, by="ann"), bool)


async def remembering_async(context: JobContext) -> None:
    assert_type(await context.astep(acharge, 7), Charge)
    assert_type(await context.astep(charge, 7), Charge)
    assert_type(await context.astep.using(key="a")(acharge, 7), Charge)
    await context.asleep(60)
    assert_type(await context.await_for(approval, 7, timeout=60), Verdict)
    assert_type(await context.aversion("fast-path", 2), int)
    assert_type(await context.agather([plain.bind(7)]), list[str])
    assert_type(await context.agather([fetch.bind("a")]), list[int])
    assert_type(await context.agather([plain.bind(7)], settled=True), list[Settled[str]])
    assert_type(await approval.asend(7, payload={"by": "ann"}), bool)
    assert_type(await approval.awithdraw(7, reason="too early"), bool)


def undoing() -> None:
    assert_type(not_plain.register(7, greeting="hi"), JobOf[None])
    with Batch("orders", undo=True) as batch:
        assert_type(batch.add_many([plain.bind(7)]), int)
    assert_type(Flow("orders", undo=True, undo_on_failure="stop").add(plain.bind(7)), Node[str])


def testing_durable_functions(made: Job) -> None:
    with crash_at("after_memo:charge", times=2) as crash:
        assert_type(run_jobs(skip_sleeps=True), Ran)
    assert_type(crash.jobs, list[int])
    assert_type(send_event(approval, 7, payload={"by": "ann"}), bool)
    assert_type(send_event("order.approval:7"), bool)
    assert_type(replay(made), Any)
    remembering(context(events={"order.approval:7": {"by": "ann"}}, versions={"fast-path": 1}))


@policy(max_attempts=3, unique="welcome:{user_id}", timeout=60)
def marked(user_id: int, *, name: str = "") -> str:
    return name


@dataclass(frozen=True)
class TaskAtHand(Generic[P, R]):
    """What checkers see of a task whose stubs know its arguments."""

    func: Callable[P, R]
    module_path: str = ""


def tasks_as_jobs(task: TaskAtHand[[int], str], unknown: Any, made: Job) -> None:
    assert_type(marked(7, name="a"), str)
    assert_type(job_of(task), JobDefinition[[int], str])
    assert_type(job_of(task).using(unique="a").register(7), JobOf[str])
    assert_type(enqueue_many(task, [((7,), {}), ([8], {"a": 1})]), list[str])
    job_of(unknown).register(1, 2, a=3)
    result_of(made)
    plain.as_task("default")
