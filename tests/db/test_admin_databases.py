"""The admin over several databases: each page is about one, and no job is taken for that of its number elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, cast
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from django_pgjobs import job
from django_pgjobs.admin.confirming import neighbours_of
from django_pgjobs.admin.display import Pages
from django_pgjobs.admin.pauses import PauseForm
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Action, CronEntry, EventState, Heartbeat, Job, LimitOverride, QueueState
from django_pgjobs.notifying.notice import notice_of
from django_pgjobs.queues import Queue
from django_pgjobs.states import STEER
from django_pgjobs.testing import run_jobs
from tests.db.test_two_databases import alias
from tests.plugins.fix_admin import CLAIM, WORKER, client_with, html, make, now_plus, said, user_with

pytestmark = pytest.mark.usefixtures("eu1")

ADMIN = "/admin/pgjobs"
LIST = f"{ADMIN}/job/"
FAR = f"{LIST}?database=eu1"


def report(day: int = 1) -> None: ...


@pytest.fixture
def eu1(committed: None, charge_known: None, settings: Any) -> Iterator[str]:
    """Another database that is served, where ids begin anew."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'pgjobs%'")
        tables = [name for (name,) in cursor.fetchall()]
        cursor.execute("CREATE SCHEMA eu1")
        for table in tables:
            cursor.execute(f"CREATE TABLE eu1.{table} (LIKE public.{table} INCLUDING ALL)")
    settings.PGJOBS = {"DATABASES": ["default", "eu1"]}
    job(name="shop.report", schedulable=True)(report)
    yield from alias("eu1", "-c search_path=eu1,public")
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA eu1 CASCADE")


def put(using: str, **fields: Any) -> Job:
    given = {"name": "shop.charge", "payload": {"args": ["4111", 7], "kwargs": {}}, **fields}
    (row,) = Job.objects.using(using).bulk_create([Job(**given)])
    return Job.objects.using(using).get(pk=row.pk)


@pytest.fixture
def twins(eu1: str) -> tuple[Job, Job]:
    """Two jobs of one number, here and there."""
    return put("default", pk=17, description="near one"), put("eu1", pk=17, description="far one")


@pytest.fixture
def rows(twins: tuple[Job, Job]) -> None:
    """A row of every kind in both databases, with the same ids and names."""
    for using in ("default", "eu1"):
        Job.objects.using(using).filter(pk=17).retry(by="nobody")
        Job.objects.using(using).filter(pk=17).cancel(by="ann")
        put(using, pk=18, outcome="abandoned", error="ValueError: no", error_class="ValueError", tags=["vip"],
            finished_at=now_plus(-5), attempt=1, cron_entry="report:a", fire_at=now_plus(-9))  # fmt: skip
        put(using, pk=19, run_at=now_plus(-10), key="k1")
        QueueState.objects.using(using).create(kind="queue", name="mail", paused_at=now_plus(-9))
        LimitOverride.objects.using(using).create(kind="queue", name="mail", concurrency=2)
        worker = {"host": "h", "pid": 1, "processes": 1, "threads": 1, "async_slots": 1, "version": "1"}
        Heartbeat.objects.using(using).create(pk=WORKER, name="web-1", **worker)
        EventState.objects.using(using).create(name="order.ok:7", waits=1)
        definition: Any = registry.get("shop.report")
        definition.using(database=using).schedule("0 7 * * 1", name="report:a").register()
        CronEntry.objects.using(using).update(last_job_id=18, origin="code")


def state(using: str, job_id: int = 17) -> tuple[str, str | None]:
    return Job.objects.using(using).values_list("state", "cancel_reason").get(pk=job_id)


def steer(client: Client, row: str, name: str = "cancel", **data: str) -> Any:
    return client.post(f"{LIST}{row}/steer/{name}/", {"mode": "ask", "reason": "this one", **data})


def goes_to(answer: Any) -> str:
    """Where a redirect leads, but for the filters of the list to which that page leads back."""
    return str(re.sub(r"[?&]_changelist_filters=[^&]*", "", answer.url))


def act(client: Client, query: str, ids: list[str], name: str = "cancel", **data: str) -> Any:
    given = {
        "action": name,
        "_selected_action": ids,
        "confirmed": "yes",
        "mode": "ask",
        "reason": "these",
        "index": "0",
    }
    return client.post(f"{LIST}{query}", {**given, **data}, follow=True)


# --- Pages and links -------------------------------------------------------------------------------------------------

PAGES = [
    "job/?database=eu1", "job/?database=eu1&state=cancelled", "job/eu1:17/change/", "job/eu1:18/change/",
    "job/eu1:19/change/", "job/eu1:17/history/", "heartbeat/?database=eu1", f"heartbeat/eu1:{WORKER}/change/",
    "limitoverride/?database=eu1", "limitoverride/eu1:1/change/", "limitoverride/add/?database=eu1",
    "queuestate/?database=eu1", "queuestate/eu1:1/change/", "queuestate/add/?database=eu1", "eventstate/?database=eu1",
    "eventstate/eu1:order.ok_3A7/change/", "eventstate/eu1:order.ok_3A7/history/", "cronentry/?database=eu1",
    "cronentry/eu1:report_3Aa/change/", "cronentry/eu1:report_3Aa/history/", "cronentry/add/?database=eu1",
    "action/?database=eu1", "action/eu1:1/change/", "overview/?database=eu1",
]  # fmt: skip


def links(page: Any) -> list[str]:
    """Where the links and forms of a page lead, but for the index, the side, and the other databases."""
    text = re.sub(r'<nav class="pgjobs-tabs pgjobs-databases".*?</nav>', "", html(page), flags=re.DOTALL)
    text = re.sub(r'<nav class="sticky.*?</nav>', "", text, flags=re.DOTALL)
    found = re.findall(r'(?:href|action|formaction)="([^"]*)"', text)
    there = [urljoin(page.request["PATH_INFO"], unescape(each)) for each in found if each.strip("#") and each[0] != "#"]
    return [each for each in there if re.match(r"/admin/pgjobs/.", each)]


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("path", PAGES)
def test_every_link_of_a_page_stays_in_its_database(root: Client, path: str) -> None:
    page = root.get(f"{ADMIN}/{path}")
    assert page.status_code == 200
    astray = [
        each for each in links(page) if "/eu1:" not in each and "/eu1_3A" not in each and "database=eu1" not in each
    ]
    assert astray == []
    assert "eu1" in page.content.decode()
    assert "database=default" not in "".join(links(page))


@pytest.mark.usefixtures("rows")
def test_the_pages_of_links_are_there(root: Client) -> None:
    """What Django and our pages link to from one database is answered, one step deep."""
    for path in PAGES:
        page = root.get(f"{ADMIN}/{path}")
        for link in {each for each in links(page) if each.startswith("/") and "/steer/" not in each}:
            answer = root.get(link)
            assert answer.status_code in (200, 302, 405), (path, link)


def test_a_list_shows_one_database_and_offers_the_others(root: Client, twins: tuple[Job, Job]) -> None:
    here, there = root.get(LIST), root.get(f"{FAR}&state=ready")
    assert ("near one" in html(here), "far one" in html(here)) == (True, False)
    assert ("near one" in html(there), "far one" in html(there)) == (False, True)
    assert "eu1:17" in html(there)
    assert here.context["pgjobs_databases"] == [
        ("default", f"{LIST}?database=default", True), ("eu1", f"{LIST}?database=eu1", False),
    ]  # fmt: skip
    assert there.context["pgjobs_databases"][0] == ("default", f"{LIST}?database=default&state=ready", False)


def test_the_page_of_a_job_is_of_its_database(root: Client, twins: tuple[Job, Job]) -> None:
    assert "far one" in html(root.get(f"{LIST}eu1:17/change/"))
    assert "far one" not in html(root.get(f"{LIST}default:17/change/"))
    assert root.get(f"{LIST}eu1_3A17/change/").status_code == 200, "as Django writes it from a history entry"


@pytest.mark.parametrize(
    "name",
    ["heartbeat", "queuestate", "limitoverride", "eventstate", "cronentry", "action", "job", "overview"],
)
def test_a_database_that_is_not_served_is_not_found(root: Client, name: str) -> None:
    paths = ["?database=asia1", "?database=default%00", "asia1:1/change/", "other:1/change/", "asia1:1/history/"]
    paths = paths[:2] if name == "overview" else paths
    for path in paths:
        assert root.get(f"{ADMIN}/{name}/{path}").status_code == 404
    assert root.post(f"{ADMIN}/{name}/?database=asia1", {"action": "cancel"}).status_code == 404


def test_an_id_alone_is_a_question(root: Client, twins: tuple[Job, Job]) -> None:
    page = root.get(f"{LIST}17/change/")
    assert page.status_code == 300
    assert page.context["links"] == [("default:17", f"{LIST}default:17/change/"), ("eu1:17", f"{LIST}eu1:17/change/")]
    assert root.get(f"{LIST}17/history/").status_code == 300
    assert steer(root, "17").status_code == 404
    assert [state("default")[0], state("eu1")[0]] == ["ready", "ready"]


# --- Actions ---------------------------------------------------------------------------------------------------------


def test_a_job_is_steered_where_its_address_says(root: Client, twins: tuple[Job, Job]) -> None:
    assert goes_to(steer(root, "eu1:17")) == f"{LIST}eu1:17/change/"
    assert [state("default"), state("eu1")] == [("ready", ""), ("cancelled", "this one")]
    assert (Action.objects.count(), Action.objects.using("eu1").count()) == (0, 1)
    steer(root, "default:17", reason="that one")
    assert state("default") == ("cancelled", "that one")
    root.get(f"{ADMIN}/overview/")  # takes the messages
    histories = [root.get(f"{LIST}{row}:17/history/") for row in ("default", "eu1")]
    assert ["that one" in html(page) for page in histories] == [True, False]
    assert ["this one" in html(page) for page in histories] == [False, True]
    entries = LogEntry.objects.order_by("pk")
    assert [entry.object_id for entry in entries] == ["eu1:17", "default:17"]
    assert str(entries[0].object_repr) == "shop.charge #eu1:17"
    assert root.get(str(entries[0].get_admin_url())).status_code == 200


def test_a_job_that_is_only_here_is_not_steered_there(root: Client) -> None:
    put("default", pk=17)
    answer = steer(root, "eu1:17")
    assert goes_to(answer) == f"{LIST}?database=eu1"
    assert said(answer) == ["There is no job eu1:17."]
    assert state("default")[0] == "ready"


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("?database=default", ["eu1:17"]),
        ("", ["eu1:17"]),
        ("?database=eu1", ["default:17"]),
        ("?database=eu1", ["17"]),
        ("", ["17"]),
        ("?database=eu1", ["eu1:17", "default:17"]),
        ("?database=eu1", ["eu1:x"]),
        ("?database=eu1", ["eu1:eu1:17"]),
    ],
)
@pytest.mark.parametrize("across", ["0", "1"])
def test_a_selection_of_another_database_is_refused(
    root: Client, twins: tuple[Job, Job], query: str, ids: list[str], across: str
) -> None:
    answer = act(root, query, ids, select_across=across)
    assert [state("default")[0], state("eu1")[0]] == ["ready", "ready"]
    assert any("selection" in text for text in said(answer))
    assert LogEntry.objects.count() == 0


def test_a_selection_changes_the_jobs_of_its_database(root: Client, twins: tuple[Job, Job]) -> None:
    answer = act(root, "?database=eu1", ["eu1:17"])
    assert answer.redirect_chain[-1][0] == FAR
    assert [state("default"), state("eu1")] == [("ready", ""), ("cancelled", "these")]
    assert [entry.object_id for entry in LogEntry.objects.all()] == ["eu1:17"]


def test_the_question_names_the_database_and_keeps_the_selection_in_it(root: Client, twins: tuple[Job, Job]) -> None:
    asked = root.post(FAR, {"action": "cancel", "_selected_action": ["eu1:17"], "index": "0"})
    assert re.search(r'id="pgjobs-where">eu1<', html(asked))
    assert 'name="_selected_action" value="eu1:17"' in html(asked)
    assert f'href="{LIST}eu1:17/change/"' in html(asked)


def test_all_of_a_list_are_those_of_its_database(root: Client, twins: tuple[Job, Job]) -> None:
    act(root, "?database=eu1&state=ready", ["eu1:0"], select_across="1")
    assert [state("default"), state("eu1")] == [("ready", ""), ("cancelled", "these")]
    assert Action.objects.using("eu1").get().asked == "state ready"


def test_so_many_that_a_job_changes_them_are_changed_by_one_there(
    root: Client, twins: tuple[Job, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_pgjobs.admin.bulk.AT_ONCE", 0)
    answer = act(root, "?database=eu1&state=ready", ["eu1:0"], select_across="1")
    bulk = Job.objects.using("eu1").get(name=STEER)
    assert answer.redirect_chain[-1][0] == f"{LIST}eu1:{bulk.pk}/change/"
    assert Job.objects.filter(name=STEER).count() == 0
    run_jobs(database="eu1")
    assert [state("default"), state("eu1")] == [("ready", ""), ("cancelled", "these")]


def test_an_action_is_undone_where_it_was_done(root: Client, twins: tuple[Job, Job]) -> None:
    for using in ("default", "eu1"):
        Job.objects.using(using).filter(pk=17).update(outcome="abandoned", finished_at=now_plus(-1))
        Job.objects.using(using).filter(pk=17).retry(by="ann")
    answer = root.post(f"{ADMIN}/action/eu1:1/undo/")
    assert goes_to(answer) == f"{ADMIN}/action/eu1:2/change/"
    assert [state("default")[0], state("eu1")[0]] == ["ready", "abandoned"]


def test_permissions_are_as_for_one(twins: tuple[Job, Job]) -> None:
    viewer = client_with()
    assert viewer.get(FAR).status_code == 200
    assert steer(viewer, "eu1:17").status_code == 403
    act(viewer, "?database=eu1", ["eu1:17"])
    assert state("eu1")[0] == "ready"
    stranger = Client()
    stranger.force_login(user_with(name="bert"))
    for path in ("job/?database=eu1", "job/eu1:17/change/", "job/17/change/", "overview/", "job/?database=asia1"):
        assert stranger.get(f"{ADMIN}/{path}").status_code == 403
    assert Client().get(FAR).status_code == 302


# --- Pauses, schedules, events ---------------------------------------------------------------------------------------


def test_a_limit_is_set_and_restored_where_the_form_says(root: Client) -> None:
    given = {"kind": "queue", "name": "mail", "concurrency": "2", "anyway": "on", "until_0": "", "until_1": ""}
    answer = root.post(f"{ADMIN}/limitoverride/add/?database=eu1", given)
    assert goes_to(answer) == f"{ADMIN}/limitoverride/?database=eu1"
    limit = LimitOverride.objects.using("eu1").get()
    assert not LimitOverride.objects.exists()
    Queue("mail", database="default").limit(3)
    answer = root.post(f"{ADMIN}/limitoverride/eu1:{limit.pk}/restore/")
    assert goes_to(answer) == f"{ADMIN}/limitoverride/?database=eu1"
    found = [LimitOverride.objects.using(each).current().count() for each in ("default", "eu1")]
    assert found == [1, 0]


def test_a_pause_is_made_and_ended_where_the_form_says(root: Client) -> None:
    form = root.get(f"{ADMIN}/queuestate/add/?database=eu1&kind=queue&name=mail")
    assert "pgjobs-databases" in html(form)
    given = {"kind": "queue", "name": "mail", "reason": "", "until_0": "", "until_1": "", "lasts": "", "anyway": "on"}
    answer = root.post(f"{ADMIN}/queuestate/add/?database=eu1", given)
    assert goes_to(answer) == f"{ADMIN}/queuestate/?database=eu1"
    pause = QueueState.objects.using("eu1").get()
    assert not QueueState.objects.exists()
    assert LogEntry.objects.get().object_id == f"eu1:{pause.pk}"
    QueueState.objects.create(pk=pause.pk, kind="queue", name="mail", paused_at=now_plus(-1))
    answer = root.post(f"{ADMIN}/queuestate/eu1:{pause.pk}/resume/")
    assert goes_to(answer) == f"{ADMIN}/queuestate/?database=eu1"
    assert (QueueState.objects.current().count(), QueueState.objects.using("eu1").current().count()) == (1, 0)


def test_known_queues_are_those_of_the_database(root: Client) -> None:
    put("eu1", queue="far_away")
    assert "far_away" in html(root.get(f"{ADMIN}/queuestate/add/?database=eu1"))
    assert "far_away" not in html(root.get(f"{ADMIN}/queuestate/add/"))
    assert cast(Any, PauseForm.base_fields["name"].widget).database is None, "all requests share it"


@pytest.mark.usefixtures("rows")
def test_a_cron_entry_is_steered_and_overridden_in_its_database(root: Client) -> None:
    at = f"{ADMIN}/cronentry/eu1:report_3Aa"
    assert goes_to(root.post(f"{at}/steer/pause/", {"reason": "x"})) == f"{at}/change/"
    assert [CronEntry.objects.using(each).get().is_paused for each in ("default", "eu1")] == [False, True]
    before = Job.objects.count()
    root.post(f"{at}/steer/run_now/")
    assert (Job.objects.count(), Job.objects.using("eu1").filter(name="shop.report").count()) == (before, 1)
    answer = root.post(f"{at}/change/", {"expression": "0 8 * * *", "zone": "", "payload": ""})
    assert goes_to(answer) == f"{ADMIN}/cronentry/?database=eu1"
    found = [CronEntry.objects.using(each).get().expression for each in ("default", "eu1")]
    assert found == [None, "0 8 * * *"]
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"eu1:report:a"}
    answer = root.post(f"{ADMIN}/cronentry/?database=default", {"action": "resume", "_selected_action": "eu1:report:a"})
    assert CronEntry.objects.using("eu1").get().is_paused


def test_a_schedule_is_made_and_changed_in_the_database_of_its_page(root: Client) -> None:
    given = {
        "name": "weekly", "expression": "0 7 * * 1", "tz": "UTC", "misfire": "once", "overlap": "allow",
        "enabled": "on", "argument_day": "1", "_save": "1",
    }  # fmt: skip
    answer = root.post(f"{ADMIN}/cronentry/add/?job=shop.report&database=eu1", given)
    assert goes_to(answer) == f"{ADMIN}/cronentry/eu1:weekly/change/"
    assert not CronEntry.objects.exists()
    root.post(f"{ADMIN}/cronentry/add/?job=shop.report&database=default", {**given, "expression": "0 5 * * 1"})
    page = root.get(f"{ADMIN}/cronentry/eu1:weekly/schedule/")
    assert "0 7 * * 1" in html(page)
    root.post(f"{ADMIN}/cronentry/eu1:weekly/schedule/", {**given, "expression": "0 9 * * 1"})
    found = [CronEntry.objects.using(each).get().declared_expression for each in ("default", "eu1")]
    assert found == ["0 5 * * 1", "0 9 * * 1"]


@pytest.mark.usefixtures("rows")
def test_an_event_is_sent_and_withdrawn_in_its_database(root: Client) -> None:
    at = f"{ADMIN}/eventstate/eu1:order.ok_3A7"
    answer = root.post(f"{at}/send/", {"payload": "1", "confirmed": "yes"})
    assert goes_to(answer) == f"{at}/change/"
    sent = [EventState.objects.using(each).get().sent_at is not None for each in ("default", "eu1")]
    assert sent == [False, True]
    root.post(f"{at}/withdraw/", {"reason": ""})
    assert EventState.objects.using("eu1").get().sent_at is None
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"eu1:order.ok:7"}


# --- Search, and all of them -----------------------------------------------------------------------------------------


def test_a_search_by_id_or_key_looks_into_the_others(root: Client, twins: tuple[Job, Job]) -> None:
    page = root.get(f"{LIST}?q=17")
    assert [row.description for row in page.context["cl"].result_list] == ["near one"]
    assert f'href="{LIST}eu1:17/change/"' in html(page)
    put("eu1", pk=30, key="order:9")
    page = root.get(f"{LIST}?q=key:order:9")
    assert f'href="{LIST}eu1:30/change/"' in html(page)
    assert "pgjobs-elsewhere" not in html(root.get(f"{LIST}?q=18"))
    assert "pgjobs-elsewhere" not in html(root.get(f"{LIST}?q=one"))


def test_an_id_with_its_database_is_looked_for_there(root: Client, twins: tuple[Job, Job]) -> None:
    assert goes_to(root.get(f"{LIST}?q=eu1:17")) == f"{FAR}&q=17"
    assert goes_to(root.get(f"{LIST}?q=%23eu1:17&state=ready")) == f"{FAR}&q=17"
    assert root.get(f"{LIST}?q=asia1:17").status_code == 200


def test_a_broken_filter_stays_in_the_database(root: Client) -> None:
    assert goes_to(root.get(f"{FAR}&state=nonsense")) == f"{LIST}?e=1&database=eu1"


def test_the_overview_has_a_row_for_each_and_their_sums(root: Client, twins: tuple[Job, Job]) -> None:
    put("eu1", run_at=now_plus(-50))
    page = root.get(f"{ADMIN}/overview/")
    rows = page.context["rows"]
    assert [row["name"] for row in rows] == ["default", "eu1"]
    assert [row["figures"][0]["number"] for row in rows] == ["1", "2"]
    assert page.context["sums"][0]["number"] == "3"
    assert rows[1]["figures"][0]["url"] == f"{LIST}?database=eu1&state=ready"
    assert rows[1]["url"] == f"{ADMIN}/overview/?database=eu1"
    assert [each[1:] for each in page.context["pgjobs_databases"]] == [
        (f"{ADMIN}/overview/", True),
        (f"{ADMIN}/overview/?database=default", False),
        (f"{ADMIN}/overview/?database=eu1", False),
    ]
    assert '<th scope="col">Leader</th>' in html(page)
    assert "Leader" not in html(client_with().get(f"{ADMIN}/overview/"))


@pytest.mark.parametrize("databases", [["default"], None, ["eu1"]])
def test_with_one_database_the_parameter_means_nothing(
    root: Client, settings: Any, twins: tuple[Job, Job], databases: list[str] | None
) -> None:
    settings.PGJOBS = {"DATABASES": databases} if databases else {}
    assert root.get(FAR).status_code == 400
    page = root.get(f"{LIST}17/change/")
    assert (page.status_code, "near one" in html(page)) == (200, True)
    assert "pgjobs-databases" not in html(root.get(LIST))
    assert root.get(f"{LIST}eu1:17/change/").status_code == 302


def test_the_links_of_a_notice_lead_to_its_database(rows: None) -> None:
    group = {
        "name": "shop.charge", "error_class": "ValueError", "jobs": 1, "first_at": "2026-03-01T10:00:00+01:00",
        "last_at": "2026-03-01T10:00:00+01:00", "ids": [17], "releases": [],
    }  # fmt: skip
    digest = {"since": None, "until": None, "jobs": 1, "at_least": False, "groups": [group], "other_groups": 0}
    [found] = notice_of({**digest, "problems": []}, database="eu1", several=True).groups
    client = client_with("view_job")
    page = html(client.get(found.links[0]))
    assert "far one" in page
    assert "near one" not in page
    assert f"{LIST}eu1:18/change/" in unescape(html(client.get(found.link)))


def test_a_question_before_a_kill_says_that_other_databases_lose_jobs_too() -> None:
    """Executors are shared, and the page reads one database: it does not claim that nothing else runs."""
    row = make(claim_id=CLAIM, worker=WORKER, claimed_at=now_plus(-1), attempt=1)
    said = neighbours_of([row.pk], Pages("admin", "default"), "default")
    assert said == "Jobs of other databases on the same workers would run again, too."
    assert neighbours_of([row.pk], Pages("admin"), None) == "Nothing else runs on their workers now."
