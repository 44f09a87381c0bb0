"""A month of durable functions: a deploy every few days, renames among them, and a restore from a dump in the middle.

Time passes by moving the rows. A deploy replaces the registered functions. The dump is a copy of the tables, and the
restore puts their rows back, older by what has passed since.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from django_pgjobs import Event, JobContext, job
from django_pgjobs.models import Attempt, Job, Memo
from django_pgjobs.testing import StoppedAt, backdate, isolated_registry, replay, run_jobs, send_event

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quiet")]

approval: Event[str] = Event("month.approval")

WEEK = timedelta(days=7)
DEPLOYS = (0, 2, 4, 6, 9, 11, 13, 16, 18, 21, 24, 28, 31)
"""The first code, and twelve deploys, by the days on which they begin to run."""

REGISTERED = {0: "first", 3: "second", 10: "third", 14: "fourth"}
DUMPED, RESTORED = 15, 19
LAST_DAY = 60


class Month:
    """What happens: which day it is, and what ran when."""

    def __init__(self) -> None:
        self.day = 0
        self.ran: list[tuple[int, str]] = []
        self.price: Any = None
        self.deployed = ExitStack()

    def do(self, what: str) -> str:
        self.ran.append((self.day, what))
        return what

    def deploy(self, number: int) -> Any:
        """Replace the code by that of a deploy, and return the job."""
        self.deployed.close()
        self.deployed.enter_context(isolated_registry())

        def price(order: str, number: int) -> str:
            return self.do(f"price {order} {number}")

        self.price = job(name="month.price")(price)

        def order(context: JobContext, name: str) -> list[Any]:
            return self.order(context, name, number)

        if number < 10:
            return job(name="month.order", takes_context=True, max_attempts=1)(order)
        renamed: Any = job(name="month.bill", aliases=["month.order"], takes_context=True, max_attempts=1)
        return renamed(order)

    # What the jobs do

    def charge(self, order: str) -> str:
        return self.do(f"charge {order}")

    def charge_card(self, order: str) -> str:
        return self.do(f"charge {order}")

    def report(self, order: str, week: int) -> str:
        return self.do(f"report {order} {week}")

    def audit(self, order: str) -> str:
        return self.do(f"audit {order}")

    def insure(self, order: str) -> str:
        return self.do(f"insure {order}")

    def order(self, context: JobContext, name: str, number: int) -> list[Any]:
        """The code of deploy ``number``."""
        if number < 4:
            charged = context.step.using(name="charge")(self.charge, name)
        else:  # the function has another name, and the step keeps its own
            charged = context.step.using(name="charge")(self.charge_card, name)
        if 1 <= number < 8:  # added by one deploy, before what jobs remember, and removed by another
            context.step.using(name="audit")(self.audit, name)
        version = context.version("insured", 2 if number >= 6 else 1)
        found = [charged, f"version {version}"]
        for week in range(4):
            # Sleeps were counted. Since they are named, the names are those that counting gave them.
            counted = "sleep" if week == 0 else f"sleep#{week + 1}"
            if number < 7:
                context.sleep(WEEK)
            else:
                context.sleep(WEEK, name=counted)
            if week == 2 and number >= 5:  # reordered: the prices came after the report
                found += self.prices(context, name)
            found.append(context.step.using(key=week, name="report")(self.report, name, week))
            if week == 1:
                found.append(context.wait_for(approval, name, timeout=timedelta(days=30)))
            if week == 2 and number < 5:
                found += self.prices(context, name)
        if version >= 2:
            found.append(context.step.using(name="insure")(self.insure, name))
        return found

    def prices(self, context: JobContext, name: str) -> list[Any]:
        return context.gather([self.price.bind(name, number) for number in range(3)], name="prices")


def tables() -> list[str]:
    models = apps.get_app_config("pgjobs").get_models()
    return sorted(model._meta.db_table for model in models if not model._meta.proxy)


def columns(table: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
            [table],
        )
        return str(cursor.fetchone()[0])


def dump() -> None:
    with connection.cursor() as cursor:
        for table in tables():
            cursor.execute(f"CREATE TEMP TABLE dumped_{table} ON COMMIT DROP AS SELECT {columns(table)} FROM {table}")


def restore() -> None:
    with connection.cursor() as cursor:
        for table in tables():
            cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"INSERT INTO {table} ({columns(table)}) SELECT {columns(table)} FROM dumped_{table}")


def lived(month: Month) -> dict[str, int]:
    """Live through the month; return the ids of the orders."""
    ids: dict[str, int] = {}
    current: Any = None
    for month.day in range(LAST_DAY):
        if month.day in DEPLOYS:
            current = month.deploy(DEPLOYS.index(month.day))
        if month.day in REGISTERED:
            ids[REGISTERED[month.day]] = current.register(REGISTERED[month.day]).pk
        if month.day == DUMPED:
            dump()
        if month.day == RESTORED:
            restore()
            backdate(Job.objects.filter(finished_at=None), run_at=timedelta(days=RESTORED - DUMPED))
        if month.day % 3 == 0:
            for waiting in Memo.objects.filter(kind="event", finished_at=None).values_list("event", flat=True):
                send_event(str(waiting), payload="approved")
        run_jobs()
        backdate(Job.objects.filter(finished_at=None), run_at=timedelta(days=1))
    return ids


@pytest.fixture
def month() -> Any:
    made = Month()
    yield made
    made.deployed.close()


def test_a_month_with_twelve_deploys_three_renames_and_a_restore(month: Month) -> None:
    """It ends, and nothing ran twice that was remembered; what ran after the dump is not known after the restore."""
    ids = lived(month)
    versions = {"first": 1, "second": 1, "third": 1, "fourth": 2}  # that of the day on which each began
    for name, pk in ids.items():
        order = Job.objects.get(pk=pk)
        assert (order.outcome, order.error) == ("succeeded", ""), name
        result: Any = order.result
        told = set(result)
        assert told >= {f"charge {name}", f"version {versions[name]}", "approved"}
        assert told >= {f"report {name} {week}" for week in range(4)}
        assert told >= {f"price {name} {number}" for number in range(3)}
        assert (f"insure {name}" in told) == (name == "fourth")
        assert len(result) == len(told) == 10 + (name == "fourth")
    kept = Counter(what for day, what in month.ran if not DUMPED <= day < RESTORED)
    lost = {what for day, what in month.ran if DUMPED <= day < RESTORED}
    assert lost, "the restore comes too early: nothing was lost by it"
    assert {what: times for what, times in kept.items() if times > 1} == {}
    assert Memo.objects.filter(kind="step").count() == sum(not what.startswith("price") for what in kept)
    assert not Attempt.objects.exists()


def test_replay_tells_which_deploys_rename_or_remove_what_is_remembered(month: Month) -> None:
    current = month.deploy(1)
    order = current.register("first")
    run_jobs()
    for number in range(1, 8):
        month.deploy(number)
        assert replay(order) == StoppedAt("sleep", "sleep"), number
    month.deploy(8)
    with pytest.raises(AssertionError, match="remembers the step 'audit', which the code no longer asks for"):
        replay(order)
