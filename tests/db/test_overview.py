"""The overview: what it shows of a fleet, where each figure leads, who sees what, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgjobs.admin.overview.drawing import LEFT, WIDTH
from django_pgjobs.diagnosis.latest import MOST_OF_PAGES
from django_pgjobs.maintenance.statistics import Measurer, problems_of
from django_pgjobs.models import Action, Heartbeat, Job, LeaderTerm
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.numbers import Depth, Minute
from django_pgjobs.models.workers import Statistic
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.states import FLEET, TREND
from django_pgjobs.store.database import on
from django_pgjobs.values.interval import Interval
from django_pgjobs.values.schedule import Schedule
from tests.db.cron_ground import declare
from tests.plugins.fix_admin import (
    CLAIM,
    WORKER,
    client_with,
    html,
    ids_on,
    make,
    make_one_of_each,
    now_plus,
    user_with,
)
from tests.plugins.fix_db import AUTHOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

PAGE = "/admin/pgjobs/overview/"
HIDDEN = "\u202e\u2066\x1b<script>alert(1)</script>{% now %}"


def section(page: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in page.context["sections"] if each["id"] == f"pgjobs-{name}")
    return found


def lead() -> None:
    """Let the author of statistics lead, as a worker's leader does."""
    LeaderTerm.objects.update_or_create(
        id=1,
        defaults={
            "term": 1, "worker": WORKER, "worker_name": AUTHOR.name, "taken_at": Now(),
            "expires_at": Now() + timedelta(minutes=1),
        },
    )  # fmt: skip
    Measurer(AUTHOR, problems_of)(on("default"))


def beat(**facts: Any) -> Heartbeat:
    given: dict[str, Any] = {"host": "h", "pid": 1, "processes": 1, "threads": 4, "async_slots": 1, "version": "1"}
    row: Heartbeat = Heartbeat.objects.create(**{**given, **facts})
    return row


def beginning(seconds: int) -> Any:
    """When the present span of so many seconds began, by the server's clock."""
    text = "SELECT date_bin(make_interval(secs => %s), statement_timestamp(), '1970-01-01 00:00Z')"
    with connection.cursor() as cursor:
        cursor.execute(text, [seconds])
        return cursor.fetchone()[0]


# --- what it shows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("led", [True, False])
def test_each_tile_shows_the_number_of_the_list_it_leads_to(root: Client, led: bool) -> None:
    """By the leader's figures, and counted now while nobody leads."""
    make_one_of_each()
    make(run_at=now_plus(-10), queue="mail")
    if led:
        lead()
    tiles = {tile["label"]: tile for tile in section(root.get(PAGE), "tiles")["tiles"]}
    assert {label: tile["number"] for label, tile in tiles.items()} == {
        "due": "2", "running": "1", "retrying": "1", "abandoned": "1", "parked": "1", "limited": "1", "paused": "1",
        "blocked": "1",
    }  # fmt: skip
    for label, tile in tiles.items():
        assert str(len(ids_on(root.get(tile["url"])))) == tile["number"], label


def test_while_no_worker_leads_each_count_of_a_viewer_stops_early(root: Client) -> None:
    """A page that counted as far as the leader does took 324 ms of each viewer beside ten million jobs."""
    due = {"name": "x", "queue": "mail", "payload": {"args": [], "kwargs": {}}}
    Job.objects.bulk_create([Job(**due, run_at=now_plus(-10)) for _ in range(MOST_OF_PAGES + 1)])
    counted = section(root.get(PAGE), "tiles")["tiles"][0]
    lead()
    led = section(root.get(PAGE), "tiles")["tiles"][0]
    assert (counted["label"], counted["number"], led["number"]) == ("due", "≥ 2,000", "2,001")


def test_each_figure_of_a_queue_leads_to_a_list_with_that_number(root: Client) -> None:
    make_one_of_each()
    make(run_at=now_plus(-10), created_at=now_plus(-10), queue="mail")
    make(queue="mail", outcome="abandoned", finished_at=now_plus(-60))
    make(queue="mail", outcome="abandoned", finished_at=now_plus(-7200))
    Minute.objects.create(
        worker=FLEET, minute=beginning(60), queue="default", name="shop.charge", outcome="succeeded", release="",
        jobs=1, run_seconds=1, wait_seconds=1, run_histogram=[1], wait_histogram=[1],
    )  # fmt: skip
    lead()
    page = root.get(PAGE)
    rows = {row["name"]: row for row in section(page, "queues")["queues"]}
    assert set(rows) == {"default", "mail", "elsewhere"}
    for row in rows.values():
        for name in ("due", "running", "succeeded", "abandoned"):
            assert str(len(ids_on(root.get(row[f"{name}_url"])))) == row[name], (row["name"], name)
        for number, word, url in row["held"]:
            assert str(len(ids_on(root.get(url)))) == number, (row["name"], word)
    assert rows["mail"]["abandoned"] == "1"
    assert rows["mail"]["unserved"]
    assert float(rows["mail"]["oldest"].removesuffix(" s")) >= 10


def test_the_banner_is_calm_or_names_each_problem_with_its_page(root: Client) -> None:
    beat(id=WORKER, name="web-1", queues=None)
    lead()
    assert section(root.get(PAGE), "banner")["calm"] == "All queues are served, and no job waits."
    make(run_at=now_plus(-10), created_at=now_plus(-10), queue="mail")
    lead()
    assert re.search(r"the oldest due job waits \d\d\.\d s", section(root.get(PAGE), "banner")["calm"])
    Heartbeat.objects.update(last_beat_at=Now() - timedelta(seconds=30))
    Job.objects.update(run_at=Now() - timedelta(hours=1), created_at=Now() - timedelta(hours=1))
    lead()
    problems = section(root.get(PAGE), "banner")["problems"]
    assert [each["url"].partition("/pgjobs/")[2] for each in problems] == [
        "job/?state=ready&queue=mail", "job/?state=ready&queue=mail", "heartbeat/",
    ]  # fmt: skip
    assert "Worker web-1 was last heard from" in problems[-1]["text"]


def test_failures_are_grouped_and_their_link_and_retry_mean_exactly_them(root: Client) -> None:
    """A group's retry goes through the confirmation with its filter, and leaves a trace."""
    ended = {"outcome": "abandoned", "attempt": 1, "queue": "payments"}
    declined = [make(error_class="shop.Declined", finished_at=now_plus(-number), **ended) for number in (5, 50, 500)]
    make(error_class="shop.Other", finished_at=now_plus(-5), **ended)
    make(error_class="shop.Declined", finished_at=now_plus(-90_000), **ended)
    page = root.get(PAGE)
    first, second = section(page, "failures")["groups"]
    assert (first["name"], first["error"], first["jobs"]) == ("shop.charge", "shop.Declined", "3")
    assert first["last"].endswith(" s ago")
    assert (second["error"], second["jobs"]) == ("shop.Other", "1")
    assert sorted(ids_on(root.get(first["url"]))) == [row.pk for row in declined]
    data = {"action": "retry", "select_across": "1", "_selected_action": "0"}
    question = root.post(first["url"], data)
    assert 'id="pgjobs-count">3<' in html(question)
    root.post(first["url"], {**data, "confirmed": "yes"})
    assert sorted(Job.objects.filter(outcome=None).values_list("pk", flat=True)) == [row.pk for row in declined]
    [trace] = Action.objects.all()
    assert (trace.verb, trace.changed, "shop.Declined" in trace.asked) == ("retry", 3, True)


def test_what_an_operator_abandoned_has_no_error_and_a_list_of_its_own(root: Client) -> None:
    ended = {"outcome": "abandoned", "finished_at": now_plus(-5)}
    make(error_class="shop.Declined", **ended)
    ours = make(**ended)
    [group] = [each for each in section(root.get(PAGE), "failures")["groups"] if each["error"].startswith("abandoned")]
    assert (group["jobs"], ids_on(root.get(group["url"]))) == ("1", [ours.pk])


def test_pausing_a_failing_job_is_one_form_away(root: Client) -> None:
    make(error_class="shop.Declined", finished_at=now_plus(-5), outcome="abandoned")
    [group] = section(root.get(PAGE), "failures")["groups"]
    form = html(root.get(group["pause_url"]))
    assert re.search(r'<input[^>]+name="name"[^>]+value="shop.charge"|value="shop.charge"[^>]+name="name"', form)
    pauses.pause("job", "shop.charge")
    [group] = section(root.get(PAGE), "failures")["groups"]
    assert group["paused"]
    assert not group["pause_url"]


def test_workers_name_what_they_run_now(root: Client) -> None:
    rows = make_one_of_each()
    Heartbeat.objects.update(running=1, threads=4)
    [worker] = section(root.get(PAGE), "workers")["workers"]
    assert (worker["name"], worker["use"]) == ("web-1", "1 of 4")
    assert [job["id"] for job in worker["jobs"]] == [rows["running"].pk]
    Job.objects.filter(pk=rows["running"].pk).update(claim_id=None)
    assert section(root.get(PAGE), "workers")["workers"][0]["jobs"] == []


def test_a_worker_with_many_jobs_names_the_longest_and_leads_to_the_rest(root: Client) -> None:
    jobs = [make(claim_id=CLAIM, claimed_at=now_plus(-number)) for number in range(8)]
    beat(id=WORKER, name="web-1", running=8)
    far = now_plus(60)
    Claim.objects.create(
        claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=far, check_at=far, job_ids=[row.pk for row in jobs]
    )
    [worker] = section(root.get(PAGE), "workers")["workers"]
    assert [job["id"] for job in worker["jobs"]] == [row.pk for row in jobs[:2:-1]]
    assert worker["more"]
    assert len(ids_on(root.get(worker["more_url"]))) == 8


@pytest.mark.parametrize(
    ("expression", "fires", "drawn"),
    [("0 * * * *", "24 fires", 24), ("0 7 * * *", "1 fire", 1), ("* * * * *", "100+ fires", 0), ("0 7 31 2 *", "0", 0)],
)
def test_a_strip_draws_each_fire_of_a_day_or_a_block_of_too_many(
    root: Client, expression: str, fires: str, drawn: int
) -> None:
    declare(on("default"), "clean", expression=expression)
    [entry] = section(root.get(PAGE), "crons")["entries"]
    strip = str(entry["strip"])
    assert f'aria-label="{fires}' in strip
    assert (len(re.findall("<line x1", strip)), "<rect" in strip) == (drawn, fires.startswith("100+"))


@pytest.mark.parametrize("expression", ["0 0 29 2 *", "0 7 * * mon", "0 0 1 1 fri#5", "every 9 weeks"])
def test_a_strip_looks_no_further_than_the_first_fire_behind_it(
    root: Client, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page looks again every five seconds: a hundred fires of something rare are a search through decades."""
    for number in range(5):
        declare(on("default"), f"rare:{number}", expression=expression)
    asked: list[datetime] = []

    def counted(after: Callable[[Any, datetime], Any]) -> Callable[[Any, datetime], Any]:
        def ask(fires: Any, instant: datetime) -> Any:
            asked.append(instant)
            return after(fires, instant)

        return ask

    for kind in (Schedule, Interval):
        monkeypatch.setattr(kind, "after", counted(kind.after))
    assert len(section(root.get(PAGE), "crons")["entries"]) == 5
    assert len(asked) <= 5 * 2, "at most one on the strip, and the first beyond it"


@pytest.mark.parametrize(("span", "buckets"), [("hour", 60), ("day", 96), ("month", 120), ("forged", 60)])
def test_charts_show_ends_times_depths_and_releases(root: Client, span: str, buckets: int) -> None:
    start = {"hour": 60, "day": 900, "month": 21_600, "forged": 60}[span]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT date_bin(make_interval(secs => %s), statement_timestamp(), '1970-01-01 00:00Z')", [start]
        )
        at = cursor.fetchone()[0]
    figures: dict[str, Any] = {
        "queue": "", "name": "", "run_seconds": 1, "wait_seconds": 1, "run_histogram": [0, 4], "wait_histogram": [9],
    }  # fmt: skip
    before = at - timedelta(seconds=start)
    for minute, outcome, release in ((before, "succeeded", "r1"), (at, "succeeded", "r2"), (at, "abandoned", "r2")):
        Minute.objects.create(worker=TREND, minute=minute, outcome=outcome, release=release, jobs=3, **figures)
    Minute.objects.create(worker=FLEET, minute=at, outcome="succeeded", release="r2", jobs=99, **figures)
    Depth.objects.create(minute=at, queue="a", ready=7, scheduled=0, running=0, held=0)
    page = root.get(PAGE, {"span": span})
    found = section(page, "charts")
    assert len(found["charts"]) == 4
    assert [(row["ended"][:3], row["due"]) for row in found["rows"]] == [
        (["3", "0", "3"], "7"), (["3", "0", "0"], "–"),
    ]  # fmt: skip
    [mark] = found["releases"]
    assert mark.startswith("Release r2 since")
    drawing = str(found["charts"][0]["drawing"])
    assert len(re.findall("<rect", drawing)) == 3
    [(begins, ends)] = re.findall(r'<line x1="(\S+)" x2="(\S+)"', drawing)
    assert float(begins) == float(ends) > (LEFT + WIDTH) / 2, "a release is a vertical line"
    width = (WIDTH - LEFT) / buckets - 1
    assert f'width="{max(width, 1):.1f}"' in drawing


def test_the_axis_of_times_has_short_words(root: Client) -> None:
    """Milliseconds beside hours."""
    histogram = [1] * 25
    Minute.objects.create(
        worker=TREND, minute=beginning(60), queue="", name="", outcome="succeeded", release="", jobs=25, run_seconds=1,
        wait_seconds=1, run_histogram=histogram, wait_histogram=[1],
    )  # fmt: skip
    waited, ran = (str(each["drawing"]) for each in section(root.get(PAGE), "charts")["charts"][1:3])
    words = [re.findall(r'text-anchor="end">([^<]*)</text>', drawing)[:-1] for drawing in (waited, ran)]
    assert words[0] == ["1 ms"]
    assert {"10 s", "1 min", "1 h"} <= {*words[1]}
    assert max(map(len, words[1])) <= 6


def test_a_bar_leads_to_the_jobs_that_ended_then(root: Client) -> None:
    then = beginning(60) - timedelta(minutes=3)
    Minute.objects.create(
        worker=TREND, minute=then, queue="", name="", outcome="succeeded", release="", jobs=1, run_seconds=1,
        wait_seconds=1, run_histogram=[1], wait_histogram=[1],
    )  # fmt: skip
    ours = make(outcome="succeeded", finished_at=then + timedelta(seconds=30))
    for other in (-1, 61):
        make(outcome="succeeded", finished_at=then + timedelta(seconds=other))
    [url] = re.findall(r'<a href="([^"]+)"', str(section(root.get(PAGE), "charts")["charts"][0]["drawing"]))
    assert ids_on(root.get(unescape(url))) == [ours.pk]


# --- who sees what -------------------------------------------------------------------------------------------------


def test_only_who_may_see_jobs_sees_it_and_each_section_has_its_permission(client: Client) -> None:
    make_one_of_each()
    assert client.get(PAGE).status_code == 302
    client.force_login(user_with(name="nobody"))
    assert client.get(PAGE).status_code == 403
    assert "/overview/" not in html(client.get("/admin/"))
    ids = {each["id"] for each in client_with().get(PAGE).context["sections"]}
    assert ids == {f"pgjobs-{name}" for name in ("banner", "tiles", "queues", "failures", "charts")}


def test_who_may_only_see_is_offered_no_button_and_no_page_that_refuses(root: Client) -> None:
    make_one_of_each()
    make(error_class="shop.Declined", finished_at=now_plus(-5), outcome="abandoned")
    viewer = client_with()
    page = html(viewer.get(PAGE))
    assert "Retry all" not in page
    assert "Pause" not in page.replace('<th scope="col">Pause</th>', "")
    for url in set(re.findall(r'href="(/admin/pgjobs/[^"#]+)"', page)):
        assert viewer.get(unescape(url)).status_code == 200, url


@pytest.mark.parametrize(
    ("permissions", "offered"),
    [
        (("pause_queue", "view_queuestate"), {"Pause…", "Resume…"}),
        (("pause_queue",), {"Pause…"}),
        (("view_queuestate",), set()),
    ],
)
def test_pauses_are_begun_and_ended_where_the_viewer_may(permissions: tuple[str, ...], offered: set[str]) -> None:
    """Pauses are ended on their list, so who may not see that list is not sent there."""
    for queue in ("mail", "payments"):
        make(queue=queue, run_at=now_plus(-10))
    make(error_class="E", finished_at=now_plus(-5), outcome="abandoned")
    Queue("mail").pause()
    pauses.pause("job", "shop.charge")
    viewer = client_with(*permissions)
    page = html(viewer.get(PAGE))
    assert {word for word in ("Pause…", "Resume…") if f">{word}<" in page} == offered
    for url in set(re.findall(r'href="(/admin/pgjobs/[^"#]+)"', page)):
        assert viewer.get(unescape(url)).status_code == 200, url


def test_it_is_the_first_page_of_the_app(root: Client) -> None:
    names = re.findall(r'<th[^>]* id="pgjobs-(\w+)"', html(root.get("/admin/pgjobs/")))
    assert names[0] == "overview"
    assert len(names) > 1


def test_arguments_results_and_errors_texts_are_not_on_it(root: Client) -> None:
    make(outcome="abandoned", finished_at=now_plus(-5), error="Declined: card 4111-1111", error_class="shop.Declined")
    make(outcome="succeeded", finished_at=now_plus(-5), result={"card": "4111-1111"})
    assert "4111-1111" not in html(root.get(PAGE))


def test_hostile_names_neither_break_nor_spoof_it(root: Client) -> None:
    name = HIDDEN
    make(name=name, queue=name, run_at=now_plus(-10))
    make(name=name, queue=name, error_class=name, finished_at=now_plus(-5), outcome="abandoned")
    beat(id=WORKER, name=name, release=name)
    pauses.pause("job", "shop.charge", reason=name)
    Depth.objects.create(minute=now_plus(-60), queue=name, ready=7, scheduled=0, running=0, held=0)
    Minute.objects.create(
        worker=TREND, minute=now_plus(-60), queue="", name="", outcome="succeeded", release=name, jobs=1, run_seconds=1,
        wait_seconds=1, run_histogram=[1], wait_histogram=[1],
    )  # fmt: skip
    lead()
    page = html(root.get(PAGE))
    assert not set("\u202e\u2066\x1b") & set(page)
    assert "<script>alert" not in page


# --- what it costs -------------------------------------------------------------------------------------------------


def test_it_takes_the_same_few_statements_however_much_there_is(root: Client) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert root.get(PAGE).status_code == 200
        return len(queries)

    lead()
    empty = statements()
    for number in range(30):
        make(queue=f"q{number}", run_at=now_plus(-10))
        make(error_class=f"shop.E{number}", finished_at=now_plus(-5), outcome="abandoned")
        beat(name=f"w{number}", running=1)
    lead()
    assert statements() <= empty + 2
    assert empty <= 20


def test_the_script_is_told_that_nothing_has_changed(root: Client) -> None:
    lead()
    tag = root.get(PAGE)["ETag"]
    assert root.get(PAGE, headers={"If-None-Match": tag}).status_code == 304
    assert root.get(PAGE, {"span": "day"}, headers={"If-None-Match": tag}).status_code == 200
    other = Client()
    other.force_login(User.objects.create_superuser("other"))
    assert other.get(PAGE, headers={"If-None-Match": tag}).status_code == 200
    lead()
    assert root.get(PAGE, headers={"If-None-Match": tag}).status_code == 200
    Statistic.objects.update(measured_at=Now() - timedelta(minutes=5))
    assert "ETag" not in root.get(PAGE), "nobody measures: what it shows is counted now"
