"""Where several databases are served the shell shows all, steers each, and says of each row where it is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management.base import CommandError
from django.db.models.functions import Now
from django.test import RequestFactory
from prometheus_client import CollectorRegistry, generate_latest

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.maintenance.statistics import Measurer
from django_pgjobs.metrics import views
from django_pgjobs.metrics.reader import FleetReader
from django_pgjobs.metrics.registry import FleetCollector
from django_pgjobs.models import CronEntry, Heartbeat, Job
from django_pgjobs.models.numbers import Total
from django_pgjobs.store import keeping, leading
from tests.e2e.elsewhere import aliased, ask, frozen, put
from tests.plugins.fix_db import AUTHOR, RawDatabase, patience, register
from tests.plugins.shell import BEAT, pgjobs, printed, run

SECONDS = 6.0
"""What two seconds may become in a busy test; a server that is waited for takes a minute and more."""


@pytest.fixture
def second(server: EmbeddedServer, committed: object, settings: Any) -> Iterator[EmbeddedServer]:
    """A server that the alias *second* leads to; both are served."""
    settings.PGJOBS = {"DATABASES": ["default", "second"]}
    with aliased("second", server.url):
        yield server


@pytest.fixture
def twins(second: EmbeddedServer) -> int:
    """The number of a job here and of another one there; there is one more there."""
    put(second.url, "fails")
    put(second.url, "waits")
    ask(second.url, "UPDATE pgjobs_job SET id = id + 2000000")
    [number] = register()
    Job.objects.filter(pk=number).update(id=2_000_001)
    return 2_000_001


ONLY_THERE = 2_000_002


def refused(*arguments: object) -> str:
    with pytest.raises(CommandError) as raised:
        pgjobs(*arguments)
    assert raised.value.returncode == 2
    return str(raised.value)


def outcomes(server: EmbeddedServer) -> list[str | None]:
    return [row[0] for row in ask(server.url, "SELECT outcome FROM pgjobs_job ORDER BY id")]


@pytest.fixture
def worker_of_both(second: EmbeddedServer, raw: RawDatabase) -> str:
    """The id of a worker that has a row in each, and beats."""
    keeping.beat(raw, {**BEAT, "queues": None, "excluded_queues": None})
    row = raw.value("SELECT to_jsonb(h)::text FROM pgjobs_heartbeat AS h")
    into = "INSERT INTO pgjobs_heartbeat SELECT * FROM jsonb_populate_record(NULL::pgjobs_heartbeat, %s::jsonb)"
    ask(second.url, into, row)
    return str(BEAT["id"])


def asked_of(server: EmbeddedServer) -> list[int]:
    """The numbers of the last requests, here and there."""
    return [
        Heartbeat.objects.get().control_number,
        ask(server.url, "SELECT control_number FROM pgjobs_heartbeat")[0][0],
    ]


def test_a_row_that_is_lost_does_not_hide_that_of_another_database(worker_of_both: str, second: EmbeddedServer) -> None:
    Heartbeat.objects.update(last_beat_at=Now() - timedelta(hours=1))
    status, text = printed("workers", "quiet", worker_of_both)
    assert (status, text.splitlines()) == (0, ["web-1 is asked, and takes it up at its next heartbeat"])
    assert asked_of(second) == [0, 1]
    ask(second.url, "UPDATE pgjobs_heartbeat SET state = 'stopped'")
    status, text = printed("workers", "resume", worker_of_both)
    assert (status, text.count("was not asked")) == (1, 1), "it is gone from both, and that is said once"


def test_the_database_before_the_verb_of_a_request_holds(worker_of_both: str, second: EmbeddedServer) -> None:
    assert printed("workers", "--database", "second", "quiet", worker_of_both)[0] == 0
    assert asked_of(second) == [0, 1]


def test_a_list_says_of_each_job_where_it_is(twins: int) -> None:
    status, text = printed("list")
    rows = [line.split()[0] for line in text.splitlines()[1:]]
    assert (status, rows) == (0, [f"default:{twins}", f"second:{ONLY_THERE}", f"second:{twins}"])
    status, text = printed("list", "--format", "json")
    found = [(job["database"], job["id"]) for job in json.loads(text)]
    assert found == [("default", twins), ("second", ONLY_THERE), ("second", twins)]


def test_an_id_lists_all_that_have_it_and_one_with_an_alias_only_that(twins: int) -> None:
    assert [line.split()[0] for line in printed("list", twins)[1].splitlines()[1:]] == [
        f"default:{twins}",
        f"second:{twins}",
    ]
    assert [line.split()[0] for line in printed("list", f"second:{twins}")[1].splitlines()[1:]] == [f"second:{twins}"]
    assert printed("list", ONLY_THERE, f"second:{twins}")[0] == 0
    status, _, errors = pgjobs("list", f"default:{ONLY_THERE}", twins)
    assert (status, errors.strip()) == (1, f"Not among them: default:{ONLY_THERE}.")


def test_an_alias_and_the_option_narrow_to_one(twins: int) -> None:
    for arguments in (["list", "--database", "default"], ["list", "--database", "default", twins]):
        assert [line.split()[0] for line in printed(*arguments)[1].splitlines()[1:]] == [f"default:{twins}"]
    assert "several databases" in refused("list", "--database", "default", f"second:{twins}")
    assert "several databases" in refused("cancel", "--batch", "second:5", f"default:{twins}", f"second:{twins}")
    assert "no database alias 'nowhere'" in refused("show", f"nowhere:{twins}")
    assert "no database alias 'nowhere'" in refused("cancel", f"nowhere:{twins}", f"second:{twins}")


@pytest.mark.parametrize("command", ["show", "why", "tree"])
def test_what_reads_takes_an_id_that_only_one_database_has(twins: int, command: str) -> None:
    status, text = printed(command, ONLY_THERE, "--format", "json")
    assert (status, json.loads(text)["database"]) == (0, "second")
    assert f"say default:{twins} or second:{twins}" in refused(command, twins)
    assert json.loads(printed(command, f"default:{twins}", "--format", "json")[1])["database"] == "default"
    status, _, errors = pgjobs(command, 77)
    assert (status, errors.strip()) == (1, "There is no job 77 in default, second.")


def test_a_job_is_shown_with_its_alias(twins: int) -> None:
    assert printed("show", f"second:{twins}")[1].startswith(f"second:{twins} tests.e2e.jobs.fails")
    assert f"second:{twins} " in printed("tree", f"second:{twins}")[1]


def test_what_steers_wants_the_alias_even_where_one_alone_has_the_id(twins: int, second: EmbeddedServer) -> None:
    words = refused("cancel", twins, ONLY_THERE, 77, "--yes")
    assert f"default:{twins} or second:{twins}; second:{ONLY_THERE} (no database that answers has 77)" in words
    assert f"second:{ONLY_THERE}" in refused("close-batch", ONLY_THERE)
    assert f"second:{ONLY_THERE}" in refused("send-event", "--job", ONLY_THERE)
    assert outcomes(second) == [None, None]
    assert Job.objects.get(pk=twins).outcome is None


def test_ids_of_several_databases_are_steered_each_in_its_own(twins: int, second: EmbeddedServer) -> None:
    text = printed("cancel", f"default:{twins}", f"second:{ONLY_THERE}", "--yes")
    assert text == (0, "default:\ncancel: 1 changed, 0 skipped\nsecond:\ncancel: 1 changed, 0 skipped\n")
    assert Job.objects.get(pk=twins).outcome == "cancelled"
    assert outcomes(second) == [None, "cancelled"]


def test_a_filter_steers_each_database_by_its_own(twins: int, second: EmbeddedServer) -> None:
    status, text = printed("cancel", "--queue", "default", "--yes", "--format", "json")
    assert (status, json.loads(text)) == (
        0,
        {
            "databases": [
                {"database": "default", "action": "cancel", "changed": 1, "skipped": {}},
                {"database": "second", "action": "cancel", "changed": 2, "skipped": {}},
            ]
        },
    )
    assert outcomes(second) == ["cancelled"] * 2
    status, _, errors = pgjobs("retry", "--state", "cancelled", "--yes")
    undo = f"undo-action second:{ask(second.url, 'SELECT max(id) FROM pgjobs_action')[0][0]}"
    assert undo in errors
    assert pgjobs(*undo.split())[0] == 0
    assert outcomes(second) == ["cancelled"] * 2
    assert "say which action you mean" in refused("undo-action", undo.rpartition(":")[2])


def test_a_queue_is_paused_and_resumed_everywhere(second: EmbeddedServer) -> None:
    assert pgjobs("pause", "mail")[0] == 0
    assert ask(second.url, "SELECT name FROM pgjobs_queue_state") == [("mail",)]
    found = json.loads(printed("pause", "--list", "--format", "json")[1])["databases"]
    paused = [(each["database"], each["paused"][0]["name"]) for each in found]
    assert paused == [("default", "mail"), ("second", "mail")]
    assert pgjobs("resume", "mail", "--database", "second")[0] == 0
    assert pgjobs("resume", "mail")[0] == 1, "it was not paused there"
    assert pgjobs("pause", "no queue")[0] == 2
    found = json.loads(printed("pause", "--list", "--format", "json")[1])["databases"]
    assert [each["paused"] for each in found] == [[], []]


def test_what_has_one_home_is_steered_there(second: EmbeddedServer) -> None:
    for arguments in (["send-event", "order:1"], ["withdraw-event", "order:1"], ["crons", "pause", "nightly"]):
        assert "--database: default, second" in refused(*arguments)
    assert pgjobs("send-event", "order:1", "--database", "second")[0] == 0
    assert ask(second.url, "SELECT count(*) FROM pgjobs_event") == [(1,)]
    ask(second.url, "DELETE FROM pgjobs_event")
    assert "--batch is: default:5 or second:5" in refused("list", "--batch", 5)
    assert pgjobs("list", "--batch", "second:5")[0] == 0


def test_an_entry_of_one_database_is_found_wherever_it_is(second: EmbeddedServer) -> None:
    """One that no database has is said, as with one database."""
    declared = {"declared_expression": "@daily", "declared_zone": "UTC", "declared_payload": {}, "declared_options": {}}
    CronEntry.objects.bulk_create([CronEntry(name="nightly", job_name="shop.night", **declared)])
    status, text = printed("crons", "list", "nightly")
    assert (status, "nightly" in text) == (0, True)
    assert pgjobs("crons", "next", "nightly")[0] == 0
    found = json.loads(printed("crons", "list", "nightly", "--format", "json")[1])["databases"]
    assert [len(each["crons"]) for each in found] == [1, 0]
    assert found[0]["crons"][0]["each_database"] is False
    status, text, errors = pgjobs("crons", "list", "nigthly", "--format", "json")
    assert (status, errors.count("There is no cron entry nigthly")) == (1, 2)
    assert [each["trouble"]["code"] for each in json.loads(text)["databases"]] == ["failed", "failed"]


def test_figures_and_problems_of_all(twins: int) -> None:
    status, text = printed("stats", "--now")
    assert status == 0
    assert [line for line in text.splitlines() if line.endswith(":")] == ["default:", "second:"]
    found = json.loads(printed("stats", "--now", "--format", "json")[1])["databases"]
    assert [(each["database"], each["queues"][0]["ready"]) for each in found] == [("default", 1), ("second", 2)]
    status, text = printed("check")
    assert status == 1
    assert [line.split(": ")[:2] for line in text.splitlines()] == [
        [alias, code] for alias in ("default", "second") for code in ("no_worker", "leader")
    ]
    found = json.loads(printed("check", "--format", "json")[1])
    assert [each["database"] for each in found["problems"]] == ["default", "default", "second", "second"]
    assert printed("top")[1].count("QUEUE ") == printed("workers")[1].count("NAME ") == 2
    assert json.loads(printed("workers", "--format", "json")[1]) == []
    assert json.loads(printed("names", "--format", "json")[1])[0]["database"] == "default"
    assert "second:" in printed("stats", "--sizes")[1]
    assert pgjobs("crons", "list")[0] == pgjobs("prune", "--dry-run")[0] == 0


def test_where_one_database_is_served_ids_of_two_are_refused(twins: int, settings: Any) -> None:
    settings.PGJOBS = {}
    assert "several databases: default, second" in refused("cancel", f"default:{twins}", f"second:{twins}")
    assert printed("list", f"default:{twins}")[1].splitlines()[1].split()[0] == str(twins)
    assert printed("show", f"second:{twins}")[1].startswith(f"#{twins} ")


AWAY = {
    "check": 1, "stats": 1, "stats --format json": 1, "top": 1, "workers": 1, "workers --format json": 1, "list": 1,
    "list --format json": 1, "names": 1, "why 2000001": 0, "pause --list --format json": 1, "crons list": 1,
    "show second:2000001": 1, "cancel second:2000001": 1, "list --database second": 1,
}  # fmt: skip


@pytest.mark.parametrize("command", AWAY)
def test_a_frozen_database_is_a_line_within_two_seconds(twins: int, second: EmbeddedServer, command: str) -> None:
    with frozen(second.pid):
        began = time.monotonic()
        status, text, errors = pgjobs(*command.split())
        took = time.monotonic() - began
    assert "second" in text + errors
    assert "does not answer within 2 s" in (text + errors).lower().replace("it does", "does")
    assert "default" in text or command == "workers --format json" or "second" in command
    assert status == AWAY[command]
    assert took < patience(SECONDS)


def test_a_command_ends_though_a_thread_of_it_still_waits(second: EmbeddedServer) -> None:
    conf = json.dumps({"DATABASES": ["default", "second"]})
    settings = {"DJANGO_SETTINGS_MODULE": "tests.settings_worker", "PGJOBS_TEST_CONF": conf}
    with frozen(second.pid):
        ended = run("check", env={**settings, "PGJOBS_TEST_SECOND_DATABASE_URL": second.url})
    assert ended.returncode == 1, ended.stderr
    assert "second: database: It does not answer within 2 s.\n" in ended.stdout
    assert ended.stderr == ""


def test_a_database_that_is_down_keeps_no_other_from_being_steered(twins: int, second: EmbeddedServer) -> None:
    second.halt()
    status, text, errors = pgjobs("cancel", "--all", "--yes", "--format", "json")
    assert status == 1
    here, there = json.loads(text)["databases"]
    assert (here["database"], here["changed"]) == ("default", 1)
    assert (there["database"], there["trouble"]["code"]) == ("second", "unreachable")
    assert errors.startswith("second: it cannot be reached")
    status, text = printed("check", "--format", "json")
    codes = {(each["database"], each["code"]) for each in json.loads(text)["problems"]}
    assert codes >= {("second", "database"), ("default", "leader")}


def test_a_setting_that_cannot_be_used_is_one_line(settings: Any, committed: None) -> None:
    settings.PGJOBS = {"DATABASES": "tests.e2e.elsewhere.nothing_there"}
    assert "cannot be used" in refused("list")
    assert pgjobs("list", "--database", "default")[0] == 0


def fleet_up(reader: FleetReader) -> dict[tuple[str, ...], float]:
    [found] = [family for family in reader.families() if family.metric.name == "pgjobs_fleet_up"]
    return {point.labels: point.value for point in found.points}


def test_metrics_say_of_which_database_they_are(second: EmbeddedServer) -> None:
    collector, registry = FleetCollector(), CollectorRegistry()
    registry.register(collector)
    page = generate_latest(registry).decode()
    assert 'pgjobs_fleet_up{database="default"} 1.0' in page
    assert 'pgjobs_fleet_up{database="second"} 1.0' in page
    assert b'pgjobs_fleet_leaderless_seconds{database="second"} +Inf' in views.fleet(RequestFactory().get("/")).content
    assert fleet_up(FleetReader("default")) == {(): 1}


def test_totals_of_one_database_are_not_added_to_those_of_another(second: EmbeddedServer) -> None:
    ask(second.url, "TRUNCATE pgjobs_total, pgjobs_minute, pgjobs_statistic")
    sums = {"jobs": 3, "run_seconds": 1.5, "wait_seconds": 0.25, "run_histogram": [1, 2], "wait_histogram": [3]}
    Total.objects.using("second").create(queue="mail", name="shop.send", outcome="succeeded", **sums)
    with psycopg.connect(second.url, autocommit=True) as there:
        db = RawDatabase(there)
        leading.take_term(db, AUTHOR, seconds=60)
        Measurer(AUTHOR)(db)
    totals = [family for family in FleetReader().families() if family.metric.name == "pgjobs_fleet_ends_total"]
    points = [point for family in totals for point in family.points]
    assert [(point.labels, point.value) for point in points] == [(("second", "mail", "shop.send", "succeeded"), 3)]


def test_a_frozen_database_neither_breaks_nor_delays_a_scrape(
    second: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    reader = FleetReader()
    with frozen(second.pid):
        for _ in range(2):
            began = time.monotonic()
            assert fleet_up(reader) == {("default",): 1, ("second",): 0}
            assert time.monotonic() - began < patience(SECONDS)
            reader.kept = None
    [said] = [record.getMessage() for record in caplog.records if "metrics of the fleet" in record.getMessage()]
    assert said == "metrics of the fleet cannot be read alias=second: it does not answer within 2 s"
    assert fleet_up(reader) == {("default",): 1, ("second",): 1}
