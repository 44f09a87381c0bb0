"""What ``manage.py pgjobs`` prints, as text and as JSON, and what the lists of the admin offer: as kept in ``golden/``.

``PGJOBS_WRITE_GOLDEN=1`` writes the files again; look at the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class
from django.db import connection
from django.http import QueryDict
from django.test import Client

from django_pgjobs import job as declare_job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.queues import Queue
from django_pgjobs.store import leading
from django_pgjobs.store.database import on
from tests.db.cron_ground import declare
from tests.plugins.fix_admin import CLAIM, LIST, WORKER, charge, make, make_one_of_each, now_plus
from tests.plugins.fix_db import AUTHOR, TABLES
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed", "rows")

GOLDEN = Path(__file__).parent / "golden"
WRITES = "PGJOBS_WRITE_GOLDEN" in os.environ

CHANGING = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)?", "<instant>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", "<-------- instant ------->"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<----- instant --->"),
    (r"\b\d+ (ms|s|min|h|days?)\b", "<span>"),
    (r'("(?:(?:age|beat_age|oldest_ready)_)?seconds": )[\d.e-]+', r"\1<seconds>"),
)
"""What differs from run to run → what stands for it."""


@pytest.fixture
def rows(committed: None) -> Iterator[None]:
    """A job of every state and label, a batch with members, workers, cron entries and a pause; ids count from 1."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY")
    with registry.isolated():
        declare_job(name="shop.charge", queue="payments", sensitive=("card",), tags=("card",))(charge)
        made = make_one_of_each()
        batch = make(name="pgjobs.batch", hold="blocked", queue="pgjobs", description="Month's end")
        make(queue="mail", flow=1, parent_id=batch.pk, key="order-7", tags=["card", "eu"], description="Letter to ACME")
        Job.objects.filter(pk=made["abandoned"].pk).update(error_class="shop.errors.Declined")
        Attempt.objects.create(
            job=made["abandoned"], claim_id=CLAIM, number=1, cause="failed", worker=WORKER, worker_name="web-1",
            release="r1", started_at=now_plus(-7200), ended_at=now_plus(-7000), duration_seconds=0.25,
            exception="shop.errors.Declined", message="card refused", traceback="Traceback (most recent call last): …",
            chain=[{"exception": "builtins.OSError", "message": "line is down"}],
        )  # fmt: skip
        beat: dict[str, Any] = {"host": "h", "processes": 2, "threads": 3, "async_slots": 0, "version": "1"}
        Heartbeat.objects.create(
            id=AUTHOR.worker, name="web-2", pid=2, excluded_queues=["bulk"], release="r2", last_beat_at=now_plus(-7200),
            started_at=now_plus(-9000), **beat,
        )  # fmt: skip
        # Ahead of the clock, so that it is silent, and its lease overdue, on no machine.
        Heartbeat.objects.filter(pk=WORKER).update(last_beat_at=now_plus(6000))
        Claim.objects.update(lease_expires_at=now_plus(6000), check_at=now_plus(6000))
        assert leading.take_term(on("default"), AUTHOR, seconds=6000)
        declare(on("default"), "report", expression="0 7 1 1 *", zone="Europe/Berlin")
        declare(on("default"), "broken", expression="0 7 1 1 *", misfire="skip")
        Queue("mail").pause(by="ann", reason="The server moves.")
        yield


def difference(name: str, text: str) -> str:
    """Return how a text differs from the file of this name, after writing it if that is wanted."""
    for pattern, stand_in in CHANGING:
        text = re.sub(pattern, stand_in, text)
    # The widths of columns depend on the spans.
    text = re.sub(r"(?<=\S) {2,}", "  ", text) if "<span>" in text else text
    file = GOLDEN / name
    if WRITES:
        file.write_text(text)
    return "".join(unified_diff(file.read_text().splitlines(True), text.splitlines(True), name, "now"))


SUBCOMMANDS = [
    "list", "list --all --state abandoned", "list --key order-7 --queue mail", "list --worker web-1", "show 4",
    "show 11", "show 14", "why 14", "tree 13", "stats --now", "stats --sizes", "workers --all", "workers --queue mail",
    "check", "crons list", "crons next --count 1", "names", "pause --list --job shop.charge",
]  # fmt: skip


def test_the_shell_prints_what_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [difference("top.txt", pgjobs("top", "--once")[1])]
    for line in SUBCOMMANDS:
        name = line.replace(" --", "-").replace(" ", "-")
        status, out, err = pgjobs(*line.split())
        found.append(difference(f"{name}.txt", f"{out}{err}exit status {status}\n"))
        out = pgjobs(*line.split(), "--format", "json")[1]
        found.append(difference(f"{name}.json", json.dumps(json.loads(out), indent=1) + "\n"))
    assert "".join(found) == ""
    monkeypatch.setattr(f"{__name__}.WRITES", False)
    assert "+healthy" in difference("top.txt", "healthy\n")


def test_the_filters_of_lists_are_what_they_were(root: Client) -> None:
    """The options of the shell, those of the admin beside the list, and how a search is written in words."""
    parser = load_command_class("django_pgjobs", "pgjobs").create_parser("manage.py", "pgjobs")
    [subcommands] = [action for action in parser._actions if action.dest == "subcommand"]
    options = [
        [*action.option_strings, action.metavar, action.help]
        for action in subcommands.choices["list"]._actions  # type: ignore[index]
        if action.help != "==SUPPRESS=="
    ]
    query = "?batch=12&front=task&q=worker:web-1 ended:no letter"
    specs = root.get(LIST + query).context["cl"].filter_specs
    beside = [[str(spec.title), *(str(each[0]) for each in spec.lookup_choices)] for spec in specs]
    words = (
        'error:"shop.errors.Declined" arg.amount:7 action:3 cron:report key:order-7 since:1h older:2026-01-01 letter'
    )
    searches = [
        JobSearch.of(QueryDict("state=ready&queue=mail&name=n&tag=t&front=job&alias=a&suspended=sleeping"), "#12"),
        JobSearch.of(QueryDict("batch=7&reach=far"), words),
        JobSearch.of(QueryDict("batch=open"), "worker:web-1 ended:yes tag:t queue:q name:n front:task alias:b"),
    ]
    found = {"options": sorted(map(str, options)), "beside": beside, "words": [each.words for each in searches]}
    assert difference("filters.json", json.dumps(found, indent=1) + "\n") == ""
    assert Job.objects.filter(searches[1].listed()).count() == 0
