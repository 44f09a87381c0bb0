"""The instants of a registration travel as text; each must be the value that Django's cursor would have loaded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import connection
from django.test import override_settings

from django_pgjobs import Unique, job
from django_pgjobs.models import Job
from django_pgjobs.store import registering
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.testing import isolated_registry

INSTANTS = (
    datetime(2026, 7, 1, 12, 0, tzinfo=UTC),
    datetime(2026, 1, 1, 23, 59, 59, 100000, tzinfo=UTC),
    datetime(2026, 10, 25, 0, 30, 0, 1, tzinfo=UTC),  # 02:30 in Berlin for the first time
    datetime(2026, 10, 25, 1, 30, 0, 999999, tzinfo=UTC),  # and again
)


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])
def test_the_instant_is_the_one_that_django_loads(committed: None, use_tz: bool, zone: str) -> None:
    """Both ways of USE_TZ, in any zone of the session, also in the hour that clocks repeat."""
    with override_settings(USE_TZ=use_tz, TIME_ZONE=zone):
        for instant in INSTANTS:
            with connection.cursor() as cursor:
                cursor.execute("SELECT t, t::text FROM (SELECT %s::text::timestamptz) AS one (t)", [str(instant)])
                [(loaded, text)] = cursor.fetchall()
            found = registering._instant(text, connection)
            assert (found, found.fold, found.tzinfo) == (loaded, loaded.fold, loaded.tzinfo)


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_registered_job_has_the_instants_of_its_row(committed: None, use_tz: bool) -> None:
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Berlin"):
        stored = registering.register_plain(connection, NewJob("shop.clean", "{}"))
        row = Job.objects.get(pk=stored.id)
        assert (stored.run_at, stored.created_at) == (row.run_at, row.created_at)
        assert (stored.run_at.tzinfo is not None) is use_tz


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize(
    "start",
    [
        datetime(999, 5, 5, 3, 4, 5, 6, tzinfo=UTC),
        datetime(1900, 1, 1, tzinfo=UTC),  # Amsterdam was 19 min 32 s ahead
        datetime(2026, 12, 1, 1, 2, 3, 120000, tzinfo=timezone(timedelta(hours=5, minutes=30, seconds=15))),
        *INSTANTS,
        datetime(9999, 12, 30, tzinfo=UTC),
    ],
    ids=str,
)
def test_a_start_that_is_asked_for_is_that_of_the_row(committed: None, use_tz: bool, start: datetime) -> None:
    """It travels as text both ways, whatever its year and its zone."""
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Amsterdam"):
        plain = NewJob("shop.clean", "{}", run_at=start)
        keyed = plain._replace(key="k", key_scope="until_finished", deadline=start, expires_at=start)
        in_window = keyed._replace(key="l", key_scope="window", window_seconds=60.0)
        for new in (plain, keyed, in_window):
            stored = registering.register_job("default", new)
            assert stored is not None
            row = Job.objects.get(pk=stored.id)
            assert (stored.run_at, stored.created_at) == (row.run_at, row.created_at)
            assert (stored.expires_at, row.deadline) == (row.expires_at, row.expires_at)
            assert (row.expires_at is not None) is bool(row.key)
            if use_tz:
                assert stored.run_at == start


def work() -> None: ...


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_registered_job_has_the_expiry_of_its_row(committed: None, use_tz: bool) -> None:
    """A day later is not the same hour where a clock changes in between."""
    with isolated_registry(), override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Berlin"):
        start = datetime(2026, 10, 24, 12, tzinfo=UTC)
        plain = job(name="shop.work")(work).using(run_at=start, expires=timedelta(days=1))
        for bound in (plain, plain.using(unique="k"), plain.using(unique=Unique("l", window=60))):
            one = bound.register()
            assert "expires_at" in one.__dict__
            assert one.expires_at == Job.objects.get(pk=one.pk).expires_at


def remind() -> None: ...


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_job_says_whether_it_is_due(committed: None, use_tz: bool) -> None:
    with isolated_registry(), override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Berlin"):
        definition = job(name="shop.remind")(remind)
        assert [definition.using(delay=delay).register().label for delay in (0, 60)] == ["ready", "scheduled"]
        assert [each.label for each in Job.objects.filter(name="shop.remind").order_by("pk")] == ["ready", "scheduled"]
