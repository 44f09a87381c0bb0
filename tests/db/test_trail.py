"""The traces of steering: who did what to which jobs, whichever way it came in, and what it costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgjobs import Cron
from django_pgjobs import job as define
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance.cron_declaring import CronSync, declared_for
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.management import filters
from django_pgjobs.models import Action, CronEntry, Job
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.queues import Queue
from django_pgjobs.steering.trail import recorded_as
from django_pgjobs.store import acting
from django_pgjobs.store.database import on, statement
from tests.plugins.fix_db import AUTHOR, register

pytestmark = pytest.mark.django_db


def nothing() -> None: ...


def of(job_id: int) -> list[tuple[str, str, str, str]]:
    """What was done to a job: verb, mode, by whom, why; the latest first."""
    found = acting.list_actions(on("default"), job_id, limit=10)
    return [(each.verb, each.mode, each.acted_by, each.reason) for each in found]


def test_code_leaves_who_what_how_when_and_why() -> None:
    [one] = register()
    anna = User.objects.create_user("anna")
    Job.objects.get(pk=one).cancel(mode="kill", by=anna, reason="ordered twice")
    [action] = Action.objects.all()
    assert (action.verb, action.mode, action.via, action.reason) == ("cancel", "kill", "code", "ordered twice")
    assert action.acted_by == f"auth.User:{anna.pk} anna"
    assert (action.changed, action.skipped, action.asked, action.kind) == (1, {}, "", "jobs")
    assert timezone.now() - action.acted_at < timedelta(minutes=5)
    assert of(one) == [("cancel", "kill", f"auth.User:{anna.pk} anna", "ordered twice")]


def test_a_retry_does_not_erase_the_trace_of_the_cancel() -> None:
    [one] = register()
    row = Job.objects.get(pk=one)
    row.cancel(by="anna", reason="sale is over")
    row.retry(by="bob", reason="it is not")
    row.refresh_from_db()
    assert row.cancel_by == ""
    assert of(one) == [("retry", "", "bob", "it is not"), ("cancel", "ask", "anna", "sale is over")]


def test_every_verb_leaves_its_trace() -> None:
    ids = register(4)
    jobs = Job.objects.filter(pk__in=ids[:1])
    jobs.reschedule(delay=60, queue="bulk", priority=-3, by="anna", reason="later")
    jobs.abandon(by="anna", reason="hopeless")
    jobs.retry(by="anna", reason="hope")
    Job.objects.filter(pk__in=ids[1:2]).update(claim_id="00000000-0000-4000-8000-00000000000c")
    Job.objects.filter(pk__in=ids[1:2]).release(by="anna", reason="host goes away")
    assert [(verb, mode) for verb, mode, _, _ in of(ids[0])] == [
        ("retry", ""), ("abandon", ""), ("reschedule", "delay=60 queue=bulk priority=-3"),
    ]  # fmt: skip
    assert of(ids[1]) == [("release", "", "anna", "host goes away")]
    assert of(ids[2]) == []


def test_a_bulk_action_is_one_row_and_each_of_its_jobs_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, and whatever other actions lie around them."""
    monkeypatch.setattr("django_pgjobs.steering.batching.BATCH", 10)
    ids = register(45)
    Job.objects.filter(pk__in=ids[::2]).cancel(by="anna")
    Job.objects.filter(pk__in=ids[1::4]).abandon(by="bob")
    assert list(Action.objects.order_by("pk").values_list("verb", "changed")) == [("cancel", 23), ("abandon", 11)]
    assert ActionPart.objects.count() == 3 + 2
    verbs = [[verb for verb, *_ in of(one)] for one in ids]
    assert verbs == [["cancel"] if n % 2 == 0 else ["abandon"] if n % 4 == 1 else [] for n in range(45)]


def test_what_was_skipped_is_told_beside_what_was_changed() -> None:
    ended, ready = register(2)
    Job.objects.filter(pk=ended).update(outcome="succeeded", finished_at=timezone.now())
    Job.objects.filter(pk__in=[ended, ready]).cancel(by="anna")
    [action] = Action.objects.all()
    assert (action.changed, action.skipped) == (1, {"succeeded": 1})
    assert of(ended) == []


def test_what_changed_nothing_leaves_no_row() -> None:
    [one] = register()
    Job.objects.filter(pk=one).retry(by="anna")
    Job.objects.none().cancel(by="anna")
    Queue("nobody-paused-it").resume()
    assert not Action.objects.exists()


def test_a_steering_that_is_rolled_back_leaves_no_trace() -> None:
    [one] = register()
    with transaction.atomic():
        Job.objects.filter(pk=one).cancel(by="anna")
        assert Action.objects.exists()
        transaction.set_rollback(True)
    assert not Action.objects.exists()
    assert not ActionPart.objects.exists()


def test_a_change_that_cannot_be_traced_is_not_made(committed: None) -> None:
    """Both are one transaction."""
    [one] = register()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgjobs_action RENAME TO pgjobs_elsewhere")
    try:
        with pytest.raises(Exception, match="pgjobs_action"):
            Job.objects.filter(pk=one).cancel(by="anna")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE pgjobs_elsewhere RENAME TO pgjobs_action")
    assert Job.objects.get(pk=one).state == "ready"


@pytest.mark.parametrize("reason", ["nul \0 in it", "half \ud800 a pair", "x" * 100_000])
def test_a_text_that_no_column_takes_does_not_make_the_retry_fail(reason: str) -> None:
    [one] = register()
    Job.objects.filter(pk=one).update(outcome="abandoned", finished_at=timezone.now())
    assert Job.objects.filter(pk=one).retry(reason=reason).changed == 1
    assert len(Action.objects.get().reason) <= 1000


def test_the_shell_says_that_it_was_the_shell_and_with_what_filter() -> None:
    ids = register(3)
    call_command("pgjobs", "cancel", "--state", "ready", "--reason", "wrong import", "--by", "anna", "--yes")
    [action] = Action.objects.all()
    assert (action.via, action.acted_by, action.changed) == ("shell", "anna", 3)
    assert action.asked == "state ready"
    assert of(ids[0]) == [("cancel", "ask", "anna", "wrong import")]
    call_command("pgjobs", "retry", str(ids[0]), "--by", "bob")
    assert Action.objects.latest("pk").asked == ""


@pytest.mark.parametrize(
    ("age", "words"),
    [
        ("1h", "1 h"), ("90m", "90 min"), ("36h", "36 h"), ("7d", "7 days"), ("24h", "1 day"), ("2w", "14 days"),
        ("90s", "90 s"), ("90", "90 s"), ("0", "0 s"), ("1.5h", "90 min"), ("0.5s", "0.5 s"),
        ("31536001s", "31536001 s"),
    ],
)  # fmt: skip
def test_an_age_in_a_filter_is_kept_exactly_in_words_for_people(age: str, words: str) -> None:
    register()
    call_command("pgjobs", "cancel", "--older-than", "0", "--since", "7d", "--yes")
    assert Action.objects.latest("pk").asked == "since 7 days ago, older than 0 s"
    assert JobSearch(since=filters.age(age), older=filters.age(age)).words == (f"since {words} ago, older than {words}")


def test_pauses_of_queues_and_jobs_leave_traces_in_code_and_shell() -> None:
    with registry.isolated():
        define(name="shop.charge", aliases=("shop.pay",))(nothing)
        until = timezone.now() + timedelta(hours=1)
        Queue("mail").pause(by="anna", reason="server moves", until=until)
        call_command("pgjobs", "pause", "--job", "shop.charge", "--by", "bob")
        call_command("pgjobs", "resume", "mail", "--by", "bob")
    found = Action.objects.order_by("pk").values_list("verb", "kind", "subject", "via", "acted_by", "reason", "changed")
    assert list(found) == [
        ("pause", "queue", "mail", "code", "anna", "server moves", 1),
        ("pause", "job", "shop.charge", "shell", "bob", "", 2),
        ("resume", "queue", "mail", "shell", "bob", "", 1),
    ]
    assert Action.objects.earliest("pk").mode.startswith("until=")


def test_steering_of_cron_entries_leaves_traces() -> None:
    with registry.isolated():
        definition = define(name="shop.digest")(nothing)
        Cron("0 3 * * *", definition.bind(), name="daily digest")
        CronSync(declared_for("default"), Leader(AUTHOR)).tick(on("default"))
        entry = CronEntry.objects.get()
        entry.pause(by="anna", reason="moves")
        entry.resume(by="anna")
        made = entry.run_now(by="anna")
        entry.override(expression="0 4 * * *", by="anna")
        entry.stop(by="bob", reason="for good")
    found = Action.objects.order_by("pk").values_list("verb", "mode", "kind", "subject", "acted_by", "asked")
    assert list(found) == [
        ("pause", "", "cron", "daily digest", "anna", ""),
        ("resume", "", "cron", "daily digest", "anna", ""),
        ("run now", "", "cron", "daily digest", "anna", ""),
        ("override", "expression", "cron", "daily digest", "anna", ""),
        ("pause", "", "cron", "daily digest", "bob", ""),
        ("cancel", "ask", "jobs", "", "bob", "cron entry daily digest"),
    ]
    assert [verb for verb, *_ in of(made.pk)] == ["cancel", "run now"]


def test_a_trace_costs_one_statement_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgjobs.steering.batching.BATCH", 10)
    register(30)
    with CaptureQueriesContext(connection) as queries:
        Job.objects.all().cancel(by="anna")
    assert sum("pgjobs_action" in query["sql"] for query in queries) == 3


def test_ways_are_nested_and_know_their_rows() -> None:
    ids = register(2)
    with recorded_as("admin") as origin:
        with recorded_as(filter_words="state ready"):
            Job.objects.filter(pk=ids[0]).cancel()
        assert origin.recorded == [Action.objects.get().pk]
    Job.objects.filter(pk=ids[1]).cancel()
    assert list(Action.objects.order_by("pk").values_list("via", "asked")) == [("admin", "state ready"), ("code", "")]


def test_old_traces_are_forgotten_with_their_parts(settings: Any) -> None:
    settings.PGJOBS = {"RETENTION": {"actions": 3600}}
    ids = register(2)
    for one in ids:
        Job.objects.filter(pk=one).cancel()
    old = Action.objects.earliest("pk")
    Action.objects.filter(pk=old.pk).update(acted_at=timezone.now() - timedelta(hours=2))
    assert Expirer()(on("default")) == 1
    assert [action.pk for action in Action.objects.all()] == [old.pk + 1]
    assert set(ActionPart.objects.values_list("action_id", flat=True)) == {old.pk + 1}
    settings.PGJOBS = {"RETENTION": {"actions": None}}
    Action.objects.update(acted_at=timezone.now() - timedelta(days=900))
    assert Expirer()(on("default")) == 0


@pytest.mark.parametrize(("statistics", "most"), [("right", 50), ("emptied", 20_050)])
def test_the_page_of_a_job_reads_few_parts_beside_many_actions(committed: None, statistics: str, most: int) -> None:
    """The index knows from which id to which a part goes; beside emptied statistics each is read once at most."""
    ids = register(3)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_action (verb, via, changed) SELECT 'cancel', 'code', 1 FROM generate_series(1, 20000)"
        )
        cursor.execute(
            "INSERT INTO pgjobs_action_part (action_id, part, first_id, last_id, job_ids) "
            "SELECT id, 0, id + 1000000, id + 1000000, ARRAY[id + 1000000] FROM pgjobs_action"
        )
        Job.objects.filter(pk=ids[1]).cancel()
        cursor.execute("ANALYZE pgjobs_action, pgjobs_action_part")
        if statistics == "emptied":  # as autovacuum leaves them where it meets an empty table that has had rows
            cursor.execute(
                "UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192"
                " WHERE oid IN ('pgjobs_action'::regclass, 'pgjobs_action_part'::regclass)"
            )
        text = statement("list_actions").replace("%(id)s", str(ids[1])).replace("%(limit)s", "10")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + text)
        (plan,) = cursor.fetchone()[0]

    def read(node: dict[str, Any]) -> int:
        own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        return max([int(own), *(read(each) for each in node.get("Plans", []))])

    assert read(plan["Plan"]) < most, plan
