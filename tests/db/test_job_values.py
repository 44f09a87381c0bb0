"""``job.value()``: the function's return value with its type, or a ``JobFailed`` that says why there is none."""

from __future__ import annotations

import traceback
from datetime import date
from decimal import Decimal

import pytest
from asgiref.sync import async_to_sync

from django_pgjobs import Cancel, job
from django_pgjobs.exceptions import JobFailed, JobNotFinished
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import Background, RawDatabase, wait_until

pytestmark = pytest.mark.usefixtures("own_registry", "raw")


def test_values_come_back_as_they_were_returned() -> None:
    """C31: the stored JSON is tagged; the value is not."""

    @job
    def price(tax: Decimal) -> tuple[Decimal, date]:
        return tax * 2, date(2026, 3, 1)

    registered = price.register(Decimal("1.50"))
    run_jobs()
    assert registered.value(timeout=5) == (Decimal("3.00"), date(2026, 3, 1))
    assert registered.state == "succeeded"
    assert async_to_sync(registered.avalue)(5) == (Decimal("3.00"), date(2026, 3, 1))


def test_a_job_that_stores_no_result_has_the_value_none() -> None:
    @job(store_result=False)
    def forgets() -> int:
        return 7

    registered = forgets.register()
    run_jobs()
    assert registered.value(0) is None


def test_the_value_of_an_abandoned_job_raises_with_its_cause() -> None:
    @job(max_attempts=1)
    def breaks() -> None:
        try:
            raise OSError("line is down")
        except OSError as error:
            raise ValueError("no answer") from error

    registered = breaks.register()
    run_jobs()
    with pytest.raises(JobFailed) as raised:
        registered.value(timeout=5)
    failed = raised.value
    assert (failed.job_id, failed.outcome, failed.kind) == (registered.pk, "abandoned", "ValueError")
    assert "no answer" in failed.error
    shown = "".join(traceback.format_exception(failed))
    assert "line is down" in shown
    assert "in breaks" in shown
    with pytest.raises(JobFailed, match="no answer"):
        async_to_sync(registered.avalue)(5)


def test_the_value_of_a_cancelled_job_raises_who_and_why() -> None:
    @job
    def waits() -> None: ...

    @job
    def gives_up() -> None:
        raise Cancel("no such customer")

    first, second = waits.register(), gives_up.register()
    first.cancel(by="anna", reason="wrong month")
    run_jobs()
    with pytest.raises(JobFailed, match=f"Job {first.pk} was cancelled: by anna: wrong month"):
        first.value(0)
    with pytest.raises(JobFailed, match="no such customer") as raised:
        second.value(0)
    assert raised.value.outcome == "cancelled"


def test_the_value_is_waited_for_as_long_as_asked(raw: RawDatabase, background: Background) -> None:
    @job
    def adds(a: int, b: int) -> int:
        return a + b

    registered = adds.register(3, 4)
    with pytest.raises(JobNotFinished):
        registered.value(timeout=0)
    answer = background(registered.value, 50)
    wait_until(lambda: raw.row(registered.pk)["waited"], 5, "somebody waits for the job")
    run_jobs()
    assert answer.result() == 7


def test_functions_of_a_test_are_jobs_in_an_isolated_registry_only() -> None:
    """A job is declared where it is tested; outside it is refused, for no worker could find it."""
    from django_pgjobs.definition.registry import registry
    from django_pgjobs.exceptions import InvalidJob

    @job
    def local() -> str:
        return "ran"

    assert run_jobs().ran == []
    registered = local.register()
    assert run_jobs().succeeded == [registered.pk]

    registry.is_isolated = False
    with pytest.raises(InvalidJob, match=r"isolated_registry\(\)"):

        @job
        def refused() -> None: ...
