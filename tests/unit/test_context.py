"""The context: what a running job may know of itself."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgjobs import JobContext, clock, current_context
from django_pgjobs.context import activate, deactivate


class Wish:
    """A cancellation as ``attempt`` keeps it."""

    requested = False
    by = ""
    reason = ""
    trusted_until = float("inf")


def make_context(**changes: Any) -> JobContext:
    facts: dict[str, Any] = {
        "id": 12,
        "name": "shop.pay",
        "queue": "mail",
        "attempt": 1,
        "max_attempts": 3,
        "claim_id": "c0ffee",
        "timeout": 60.0,
        "started": clock.monotonic(),
        "headers": {"tenant": "north"},
        "description": "pay 7",
        "extras": None,
        "reporter": lambda n, total, message: None,
        "cancellation": Wish(),
    }
    facts |= changes
    rest = {name: facts.pop(name) for name in ("headers", "reporter", "cancellation", "started")}
    error = facts.pop("error", None)
    return JobContext(SimpleNamespace(**{"until": None, **facts}), **rest, error=error)


def test_remaining_attempts_count_down_to_one() -> None:
    """Row A64: metadata given to the job; remaining counts 3, 2, 1."""
    assert [make_context(attempt=attempt).remaining_attempts for attempt in (1, 2, 3)] == [3, 2, 1]
    assert make_context(attempt=5).remaining_attempts == 0


def test_the_time_left_ends_at_zero() -> None:
    context = make_context(timeout=60.0)
    remaining = context.remaining()
    assert remaining is not None
    assert 50 < remaining <= 60
    assert make_context(started=clock.monotonic() - 61).remaining() == 0.0


def test_without_timeout_and_deadline_time_has_no_end() -> None:
    context = make_context(timeout=None)
    assert context.remaining() is None


def test_a_wish_to_cancel_is_seen_when_it_comes() -> None:
    wish = Wish()
    context = make_context(cancellation=wish)
    assert (context.cancelled, context.cancelled_by, context.cancel_reason) == (False, "", "")
    wish.requested, wish.by, wish.reason = True, "anna", "wrong customer"
    assert (context.cancelled, context.cancelled_by, context.cancel_reason) == (True, "anna", "wrong customer")


def test_a_lease_is_trusted_until_its_worker_could_not_renew_in_time() -> None:
    """P11: and again once it could."""
    wish = Wish()
    context = make_context(cancellation=wish)
    seen = []
    for seconds in (60, -0.001, 60):
        wish.trusted_until = clock.monotonic() + seconds
        seen.append(context.lease_is_trusted)
    assert seen == [True, False, True]


def test_progress_reaches_the_reporter_cut_and_cleaned() -> None:
    reports: list[tuple[object, ...]] = []
    context = make_context(reporter=lambda *report: reports.append(report))
    context.progress(3)
    context.progress(4.5, 10, "page\0s" + "x" * 500)
    assert reports == [(3, None, ""), (4.5, 10, f"pages{'x' * 194}…")]


def test_progress_takes_what_counts_as_a_number_and_text_that_no_database_takes() -> None:
    """A lone surrogate, as a file's name may have, would spoil the reports of neighbours too."""
    reports: list[tuple[object, ...]] = []
    context = make_context(reporter=lambda *report: reports.append(report))
    context.progress(Decimal("1.5"), Fraction(5, 2), "file \udcff.txt")  # type: ignore[arg-type]
    assert reports == [(1.5, 2.5, "file ?.txt")]
    assert json.dumps(reports)


@pytest.mark.parametrize(
    ("n", "total"), [(-1, None), (math.nan, None), (1, math.inf), (1, -1), (Fraction(10**400), None), ("1", None)]
)
def test_progress_refuses_numbers_that_are_no_share(n: float, total: float | None) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        make_context().progress(n, total)


def test_log_records_carry_the_job(caplog: pytest.LogCaptureFixture) -> None:
    """Row A65: a correlation id in logs. The caller's own extras are kept."""
    context = make_context()
    with caplog.at_level(logging.INFO, logger="django_pgjobs"):
        context.log.info("paid %s", 7, extra={"order": 7})
        context.log.info("done")
    paid, done = (vars(record) for record in caplog.records)
    assert paid["message"] == "paid 7"
    assert {key: paid[key] for key in ("job", "attempt", "claim", "queue", "order")} == {
        "job": 12,
        "attempt": 1,
        "claim": "c0ffee",
        "queue": "mail",
        "order": 7,
    }
    assert "order" not in done
    assert context.log is context.log


def test_outside_of_a_job_there_is_no_context() -> None:
    with pytest.raises(RuntimeError, match="inside a job"):
        current_context()


def test_the_current_context_is_that_of_the_innermost_job() -> None:
    outer, inner = make_context(), make_context(id=13)
    outer_token = activate(outer)
    inner_token = activate(inner)
    assert current_context() is inner
    deactivate(inner_token)
    assert current_context() is outer
    deactivate(outer_token)
    with pytest.raises(RuntimeError):
        current_context()


def test_a_context_names_its_job() -> None:
    assert repr(make_context()) == "<JobContext shop.pay job=12 attempt=1>"


def test_a_context_takes_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        make_context().user = "anna"  # type: ignore[attr-defined]


def test_a_job_of_a_cron_entry_knows_which_and_for_which_instant() -> None:
    """W51: in UTC, whatever zone the session of its worker had; another job has none."""
    fired = make_context(extras={"cron_entry": "nightly", "fire_at": "2026-03-29T03:00:00+02:00"})
    assert (fired.cron_entry, fired.fire_at) == ("nightly", datetime(2026, 3, 29, 1, tzinfo=UTC))
    assert str(fired.fire_at) == "2026-03-29 01:00:00+00:00"
    for other in (make_context(), make_context(extras={"limit_key": "x"})):
        assert (other.cron_entry, other.fire_at) == (None, None)
