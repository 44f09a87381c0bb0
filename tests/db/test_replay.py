"""``replay`` tells whether today's code asks for what a job remembers, and versions of code in flight go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import TransactionTestCase

from django_pgjobs import Event, JobContext, Next, current_context, job
from django_pgjobs.exceptions import Abandon, InvalidJob
from django_pgjobs.models import Job, Memo
from django_pgjobs.testing import StoppedAt, isolated_registry, replay, run_jobs, send_event

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quiet")]

approval: Event[str] = Event("replay.approval")
said: list[Any] = []


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    said.clear()
    with isolated_registry():
        yield


def charge(order: int) -> int:
    said.append("charge")
    return order * 10


def reserve(order: int) -> str:
    said.append("reserve")
    return f"reserved {order}"


def ship(order: int) -> str:
    said.append("ship")
    return "shipped"


@job(name="replay.double")
def double(number: int) -> int:
    said.append("double")
    return number * 2


Body = Callable[[JobContext, int], Any]


def code(body: Body, name: str = "replay.order") -> Any:
    """Deploy this function as the code of the job."""

    def order(context: JobContext, number: int) -> Any:
        return body(context, number)

    order.__qualname__ = name
    return job(takes_context=True, name=name, max_attempts=1)(order)


def first(context: JobContext, number: int) -> list[Any]:
    charged = context.step(charge, number)
    context.sleep(3600)
    verdict = context.wait_for(approval, number, timeout=3600)
    doubled = context.gather([double_here().bind(number)])
    return [charged, verdict, context.version("mail", 1), *doubled, context.step(ship, number)]


def double_here() -> Any:
    return job(name="replay.double")(double.func)


def finished() -> Job:
    registered: Job = code(first).register(7)
    run_jobs(skip_sleeps=True)
    send_event(approval, 7, payload="yes")
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert registered.result == [70, "yes", 1, 14, "shipped"]
    said.clear()
    return registered


def test_a_finished_job_is_replayed_without_a_call_or_a_write() -> None:
    registered = finished()
    rows = [list(model.objects.order_by("pk").values()) for model in (Job, Memo)]
    assert replay(registered) == [70, "yes", 1, 14, "shipped"]
    assert said == []
    assert [list(model.objects.order_by("pk").values()) for model in (Job, Memo)] == rows


def test_what_the_function_writes_outside_of_steps_is_rolled_back() -> None:
    registered = finished()

    def writes(context: JobContext, number: int) -> Any:
        User.objects.create(username="outside")
        assert current_context().id == registered.pk
        return first(context, number)

    with isolated_registry():
        code(writes)
        replay(registered)
    assert not User.objects.exists()


def stopping(ends: str) -> Body:
    def body(context: JobContext, number: int) -> Any:
        charged = context.step(charge, number)
        if ends == "sleep":
            context.sleep(3600)
        elif ends == "wait":
            context.wait_for(approval, number, timeout=60)
        elif ends == "abandon":
            raise Abandon("no")
        return charged

    return body


@pytest.mark.parametrize(
    ("ends", "name", "kind"), [("sleep", "sleep", "sleep"), ("wait", "replay.approval:7", "event")]
)
def test_an_unfinished_job_is_replayed_up_to_where_it_goes_on(ends: str, name: str, kind: str) -> None:
    registered = code(stopping(ends)).register(7)
    assert replay(registered) == StoppedAt("charge", "step")
    assert said == []
    run_jobs()
    assert replay(registered) == StoppedAt(name, kind)
    assert said == ["charge"]


def test_what_the_function_raises_is_raised() -> None:
    registered = code(stopping("abandon")).register(7)
    run_jobs()
    with pytest.raises(Abandon):
        replay(registered)


def replayed_by(registered: Job, body: Body) -> Any:
    with isolated_registry():
        code(body)
        return replay(registered)


def test_a_renamed_step_is_found_before_the_deploy() -> None:
    def charge_card(order: int) -> int:
        return charge(order)

    charge_card.__qualname__ = "charge_card"

    def renamed(context: JobContext, number: int) -> Any:
        return [context.step(charge_card, number), context.step(reserve, number)]

    def before(context: JobContext, number: int) -> Any:
        return [context.step(charge, number), context.step(reserve, number)]

    def with_the_old_name(context: JobContext, number: int) -> Any:
        return [context.step.using(name="charge")(charge_card, number), context.step(reserve, number)]

    registered = code(before).register(7)
    run_jobs()
    said.clear()
    words = r"asks for the step 'charge_card', which it does not remember.*the step 'charge'"
    with pytest.raises(AssertionError, match=words):
        replayed_by(registered, renamed)
    assert replayed_by(registered, with_the_old_name) == [70, "reserved 7"]
    assert said == []


def test_of_an_unfinished_job_too_a_new_name_may_only_come_after_what_it_remembers() -> None:
    registered = code(stopping("sleep")).register(7)
    run_jobs()
    asks = "asks for the step 'reserve', which it does not remember. It remembers the step 'charge', the sleep 'sleep'"
    with pytest.raises(AssertionError, match=asks):
        replayed_by(registered, lambda c, n: [c.step(reserve, n), stopping("sleep")(c, n)])


def test_a_step_that_the_code_no_longer_asks_for_is_named() -> None:
    registered = code(lambda c, n: [c.step(charge, n), c.step(reserve, n)]).register(7)
    run_jobs()
    with pytest.raises(AssertionError, match="remembers the step 'reserve', which the code no longer asks for"):
        replayed_by(registered, lambda c, n: c.step(charge, n))


@pytest.mark.parametrize(
    ("asks", "named"),
    [
        (lambda c, n: c.sleep(60), "the sleep 'sleep'"),
        (lambda c, n: c.wait_for(approval, n, timeout=60), "the event 'replay.approval:7'"),
        (lambda c, n: c.gather([double_here().bind(n)]), "the gather 'gather'"),
        (lambda c, n: c.version("mail", 2), "the version 'mail'"),
        (lambda c, n: c.step(charge, n), "the step 'charge#2'"),
    ],
)
def test_each_kind_that_a_finished_job_does_not_know_is_named(asks: Body, named: str) -> None:
    registered = code(lambda c, n: c.step(charge, n)).register(7)
    run_jobs()
    with pytest.raises(AssertionError, match=f"asks for {named}"):
        replayed_by(registered, lambda c, n: [c.step(charge, n), asks(c, n)])
    assert said == ["charge"]


def test_a_name_that_has_become_another_kind_is_refused() -> None:
    registered = code(lambda c, n: c.step(charge, n)).register(7)
    run_jobs()
    with pytest.raises(InvalidJob, match="'charge' is the name of a step of this job"):
        replayed_by(registered, lambda c, n: c.sleep(60, name="charge"))


def test_an_empty_gather_is_not_remembered_and_needs_not_be() -> None:
    registered = code(lambda c, n: [*c.gather([]), c.step(charge, n)]).register(7)
    run_jobs()
    assert replay(registered) == [70]


def test_an_async_job_is_replayed() -> None:
    @job(takes_context=True, name="replay.async")
    async def order(context: JobContext, number: int) -> Any:
        return [await context.astep(charge, number), await context.agather([double_here().bind(number)])]

    double_here()
    registered = order.register(7)
    run_jobs()
    said.clear()
    assert replay(registered) == [70, [14]]
    assert said == []


def test_of_a_step_machine_the_present_step_is_replayed() -> None:
    second = code(lambda c, n: c.step(charge, n), "replay.second")
    registered = code(lambda c, n: (c.step(charge, n), Next(second.bind(8)))[1]).register(7)
    run_jobs()
    assert replay(registered) == 80


def test_a_suspension_that_the_code_swallows_is_an_error() -> None:
    def swallows(context: JobContext, number: int) -> Any:
        try:
            return context.step(reserve, number)
        except BaseException:
            return 1

    registered = code(lambda c, n: c.step(charge, n)).register(7)
    with pytest.raises(Exception, match="caught JobSuspended and continued"):
        replayed_by(registered, swallows)


class AutocommitTestCase(TransactionTestCase):
    def test_a_replay_outside_of_any_transaction_writes_nothing(self) -> None:
        registered = code(lambda c, n: c.step(charge, n)).register(7)
        run_jobs()

        def writes(context: JobContext, number: int) -> Any:
            User.objects.create(username="outside")
            return context.step(charge, number)

        assert replayed_by(registered, writes) == 70
        assert not User.objects.exists()


# Versions in flight


def deployed(registered: Job, body: Body) -> Any:
    """Run the job to its end by this code, and return its result."""
    with isolated_registry():
        code(body)
        double_here()
        run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    return registered.result


def asleep_after_charge() -> Job:
    def body(context: JobContext, number: int) -> Any:
        charged = context.step(charge, number)
        reserved = context.step(reserve, number)
        context.sleep(3600)
        return [charged, reserved, context.step(ship, number)]

    registered: Job = code(body).register(7)
    run_jobs()
    assert said == ["charge", "reserve"]
    return registered


def test_an_added_step_runs_once_also_before_what_is_remembered() -> None:
    def notify(order: int) -> str:
        said.append("notify")
        return "notified"

    def added(context: JobContext, number: int) -> Any:
        notified = context.step.using(name="notify")(notify, number)
        charged, reserved = context.step(charge, number), context.step(reserve, number)
        context.sleep(3600)
        return [notified, charged, reserved, context.step(ship, number)]

    assert deployed(asleep_after_charge(), added) == ["notified", 70, "reserved 7", "shipped"]
    assert said == ["charge", "reserve", "notify", "ship"]


def test_a_removed_step_leaves_the_others_as_they_are() -> None:
    def removed(context: JobContext, number: int) -> Any:
        charged = context.step(charge, number)
        context.sleep(3600)
        return [charged, context.step(ship, number)]

    assert deployed(asleep_after_charge(), removed) == [70, "shipped"]
    assert said == ["charge", "reserve", "ship"]


def test_a_removed_sleep_does_not_hold_the_job() -> None:
    registered = asleep_after_charge()
    assert deployed(registered, lambda c, n: [c.step(charge, n), c.step(ship, n)]) == [70, "shipped"]


def test_reordered_steps_keep_their_results() -> None:
    def reordered(context: JobContext, number: int) -> Any:
        reserved = context.step(reserve, number)
        context.sleep(3600)
        return [reserved, context.step(charge, number), context.step(ship, number)]

    assert deployed(asleep_after_charge(), reordered) == ["reserved 7", 70, "shipped"]
    assert said == ["charge", "reserve", "ship"]


@pytest.mark.parametrize(("old_name", "charged"), [("charge", 1), (None, 2)])
def test_a_renamed_step_runs_again_unless_it_keeps_its_name(old_name: str | None, charged: int) -> None:
    def charge_card(order: int) -> int:
        return charge(order)

    charge_card.__qualname__ = "charge_card"

    def renamed(context: JobContext, number: int) -> Any:
        found = context.step.using(name=old_name)(charge_card, number)
        return [found, context.step(ship, number)]

    assert deployed(asleep_after_charge(), renamed) == [70, "shipped"]
    assert said.count("charge") == charged


def test_a_version_is_the_one_of_its_first_call() -> None:
    """A fork is taken as it was at the first call, by a job that had not come to it as by new code."""

    def forked(number: int) -> Body:
        def body(context: JobContext, order: int) -> Any:
            version = context.version("path", number)
            context.sleep(3600)
            return [version, context.version("path", number), context.version("later", number)]

        return body

    registered = code(forked(1)).register(7)
    run_jobs()
    assert deployed(registered, forked(2)) == [1, 1, 2]
    with isolated_registry():
        fresh = code(forked(2)).register(8)
        run_jobs(skip_sleeps=True)
    fresh.refresh_from_db()
    assert fresh.result == [2, 2, 2]


def test_two_functions_of_one_name_are_told_apart_by_names() -> None:
    def other(order: int) -> int:
        return 0

    other.__qualname__ = "charge"
    registered = code(lambda c, n: [c.step(charge, n), c.step(other, n)]).register(7)
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "two functions are called 'charge'" in registered.error
