"""Where ``SCHEMAS`` names many, a schema without a worker sleeps: no check, page or answer takes that for a fault."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client, override_settings

from django_pgjobs.admin.bulk import is_served
from django_pgjobs.models import Job, LeaderTerm
from django_pgjobs.store import leading
from django_pgjobs.store.schemas import UNLED_SECONDS
from django_pgjobs.testing import backdate
from tests.db.test_health import problems
from tests.db.test_overview import PAGE, section
from tests.plugins.fix_db import AUTHOR, RawDatabase, job, register
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture(autouse=True)
def named() -> Iterator[None]:
    with override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant"]}):
        yield


@pytest.fixture
def led(raw: RawDatabase) -> None:
    assert leading.take_term(raw, AUTHOR, seconds=60)


@pytest.mark.usefixtures("led")
def test_due_jobs_have_no_worker_only_after_a_while() -> None:
    [one] = register()
    assert problems() == []
    backdate(job(one), run_at=90)
    assert problems() == [("no_worker", "default")]


def test_no_worker_leads_most_of_the_time(raw: RawDatabase) -> None:
    leading.take_term(raw, AUTHOR, seconds=1)
    LeaderTerm.objects.update(expires_at=Now() - timedelta(seconds=UNLED_SECONDS + 60))
    assert problems() == []
    LeaderTerm.objects.update(expires_at=Now() - timedelta(seconds=2 * UNLED_SECONDS + 60))
    assert problems() == [("leader", None)]


@pytest.mark.usefixtures("led")
def test_a_waiting_job_says_that_a_worker_comes() -> None:
    [due] = register()
    [limited, expired] = register(2)
    Job.objects.filter(pk=limited).update(hold="limited")
    Job.objects.filter(pk=expired).update(expires_at=Now() - timedelta(seconds=1))
    assert str(job(due).why()).endswith("comes to this one within seconds. Does none run? manage.py runjobs")
    assert str(job(limited).why()).endswith("A worker admits it when there is room and its turn comes.")
    assert str(job(expired).why()).endswith("The leader ends it as cancelled within seconds.")
    assert "One comes to this schema when it has something to do." in pgjobs("stats")[1]
    assert is_served("default")


@pytest.mark.usefixtures("led")
def test_the_overview_is_calm_about_it(root: Client) -> None:
    [one] = register()
    [row] = section(root.get(PAGE), "queues")["queues"]
    assert (row["workers"], row["unserved"]) == (0, False)
    backdate(job(one), run_at=90)
    [row] = section(root.get(PAGE), "queues")["queues"]
    assert row["unserved"]
