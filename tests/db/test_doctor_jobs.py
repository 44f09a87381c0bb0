"""``pgjobs doctor`` on workers, the project's code, and the rows that it keeps."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.models.numbers import Minute
from tests.db.doctor_ground import apart, examined, finding, findings, heart, nothing
from tests.plugins.fix_db import WORKER, register

__all__ = ["apart"]

pytestmark = pytest.mark.usefixtures("committed")


def test_a_queue_that_nobody_serves() -> None:
    job(name="f.job", queue="mail")(nothing)
    heart(queues=["default"])
    found = finding("queue_unserved")
    assert found["cure"] == "manage.py runjobs --queues mail"
    heart(id="00000000-0000-4000-8000-000000000002", name="mail-1", queues=["mail"])
    assert findings("queue_unserved") == []


def test_workers_of_another_version() -> None:
    heart(version="0.0.9", name="old-1")
    found = finding("versions")
    assert found["what"].endswith(": old-1 0.0.9.")
    assert found["cure"] == "manage.py pgjobs workers drain old-1"


def test_what_check_says_is_among_it() -> None:
    job(name="f.job", queue="mail")(nothing).register()
    heart(queues=["default"])
    found = finding("no_worker")
    assert (found["severity"], found["cure"]) == ("error", "manage.py runjobs --queues mail")


def test_what_check_in_flight_says_is_among_it() -> None:
    register(name="shop.gone")
    assert "shop.gone: 1 would park" in finding("in_flight")["what"]


@override_settings(PGJOBS={"LEASE_SECONDS": 1})
def test_what_the_system_checks_say_is_among_it() -> None:
    found = finding("pgjobs.E005")
    assert found["severity"] == "error"
    assert found["cure"].startswith('Set "LEASE_SECONDS" to ')


@override_settings(PGJOBS={"LEASE_SECOND": 1})
def test_settings_that_are_wrong_are_all_it_says() -> None:
    status, found = examined()
    assert (status, [each["id"] for each in found]) == (1, ["pgjobs.E002"])


counter = 0


def counts() -> None:
    global counter
    counter += 1
    os.environ["TZ"] = "UTC"


lock = threading.Lock()


def counts_alone() -> None:
    global counter
    with lock:
        counter += 1


def test_jobs_that_share_state() -> None:
    job(name="f.counts", queue="old")(counts)
    found = finding("shared_state")
    assert found["what"] == "Job f.counts changes what it shares with others: the global counter, os.environ."
    assert found["cure"] == "manage.py runjobs --queues old --threads 1 --async-slots 1"
    line = counts.__code__.co_firstlineno
    assert found["where"] == [f"{__file__}:{line + 2}", f"{__file__}:{line + 3}"]
    with override_settings(PGJOBS={"THREADS": 1}):
        assert findings("shared_state") == []


def test_a_lock_makes_it_well() -> None:
    job(name="f.counts")(counts_alone)
    assert findings("shared_state") == []


@override_settings(PGJOBS={"RETENTION": {"succeeded": None}})
def test_jobs_that_are_kept_for_ever() -> None:
    found = finding("retention")
    assert found["cure"] == 'PGJOBS = {"RETENTION": {"succeeded": timedelta(hours=24)}}'
    with override_settings(PGJOBS=eval(found["cure"].partition(" = ")[2], {"timedelta": timedelta})):
        assert findings("retention") == []


@override_settings(PGJOBS={"RETENTION": {"succeeded": timedelta(days=3650)}})
def test_a_rate_for_which_no_disk_is_large_enough() -> None:
    register()
    Minute.objects.create(
        worker=WORKER, minute=timezone.now(), queue="default", name="f.job", outcome="succeeded", release="",
        jobs=1_000_000, run_seconds=1, wait_seconds=1, run_histogram=[], wait_histogram=[],
    )  # fmt: skip
    assert finding("retention")["what"].startswith("At the rate of the last hour pgjobs_job will have ")
