"""Notices of failures by real workers: how many mails, what becomes of one when its leader dies or its server hangs."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from django_pgjobs.models import Job, LeaderTerm
from django_pgjobs.models.numbers import Notice
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.e2e.test_leaders import kill, led
from tests.plugins.fix_db import RawDatabase, blocked_by, patience, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read
from tests.unit.test_notifying import Answering, Handler

ADMIN = "admin@shop.example"
FILES = {"EMAIL_BACKEND": "django.core.mail.backends.filebased.EmailBackend", "ADMINS": [["Anna", ADMIN]]}


def notified(**given: Any) -> dict[str, Any]:
    return {"NOTIFY_FAILURES": {"to": "mail_admins", "site": "https://shop.example", **given}}


def mailing(stage: Stage, **given: Any) -> dict[str, str]:
    return {"PGJOBS_TEST_MAIL": json.dumps({**FILES, "EMAIL_FILE_PATH": str(stage.path / "mails"), **given})}


def mails(stage: Stage) -> list[str]:
    """The mails that were written so far, the first one first."""
    found = sorted(Path(stage.path / "mails").glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    return [text for path in found if (text := path.read_text()).rstrip().endswith("-" * 79)]


def counted(mail: str) -> int:
    return sum(int(number) for number in re.findall(r"^(\d+) × ", mail, re.MULTILINE))


def begun() -> bool:
    """Whether a leader has begun to look: what fails from now on is news."""
    return Notice.objects.exists()


def fail(raw: RawDatabase, count: int, name: str = "shop.pay") -> None:
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, outcome, finished_at, error_class)"
        " SELECT %s, '{\"args\": [\"secret\"], \"kwargs\": {}}', 'abandoned', statement_timestamp(), 'shop.Declined'"
        " FROM generate_series(1, %s)",
        [name, count],
    )


def deliveries() -> list[Job]:
    return list(Job.objects.filter(name="pgjobs.notify").order_by("pk"))


def test_ten_thousand_failures_are_one_mail_at_once_and_one_digest(
    worker: Workers, stage: Stage, record_property: Any
) -> None:
    """Jobs that fail in executors, and jobs that an operator abandons."""
    started = worker(processes=2, conf=notified(every_seconds=25), env=mailing(stage))
    wait_until(begun, 10, "a leader looks")
    by_hand = jobs.effect.using(delay=3600).register_many([(n,) for n in range(9_000)])
    jobs.doomed.using(max_attempts=1, delay=0).register_many([() for _ in range(1_000)])
    wait_until(lambda: mails(stage), 10, "there is a mail at once")
    Job.objects.filter(pk__in=by_hand).abandon(by="anna")
    wait_until(lambda: Job.objects.filter(outcome="abandoned").count() == 10_000, 20, "all are abandoned")
    assert len(mails(stage)) == 1, "what fails meanwhile is gathered"
    wait_until(lambda: len(mails(stage)) == 2, 40, "there is a digest")
    first, digest = mails(stage)
    assert counted(first) + counted(digest) == 10_000
    assert re.search(r"^Subject: .* jobs abandoned: tests\.e2e\.jobs\.doomed \(\w", first, re.MULTILINE)
    assert "9000 × tests.e2e.jobs.effect (abandoned by hand)" in digest
    assert f"To: {ADMIN}" in digest
    assert [job.outcome for job in ended(*deliveries())] == ["succeeded"] * 2
    assert "duty failed" not in started.log


@pytest.mark.parametrize("end", ["rolled back", "committed"])
def test_a_leader_that_dies_in_its_statement_loses_nothing_and_notifies_once(
    worker: Workers, stage: Stage, raw: RawDatabase, other: RawDatabase, end: str
) -> None:
    """Killed between row and delivery; its server process ends with it, or commits after its death."""
    conf = notified(every_seconds=3600)
    first = worker(conf=conf, env=mailing(stage))
    wait_until(led(first), 10, "the first leads")
    worker(conf=conf, env=mailing(stage))
    wait_until(begun, 10, "it looks")
    raw.query(
        "CREATE FUNCTION pgjobs_test_waits() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END'"
    )
    try:
        raw.query(
            "CREATE TRIGGER pgjobs_test BEFORE INSERT ON pgjobs_job FOR EACH ROW WHEN (NEW.name = 'pgjobs.notify')"
            " EXECUTE FUNCTION pgjobs_test_waits()"
        )
        other.query("SELECT pg_advisory_xact_lock(4711)")
        fail(raw, 7)
        wait_until(lambda: blocked_by(raw, other.pid), 10, "it is in the middle of its statement")
        waiting = raw.value(
            "SELECT array_agg(pid) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", [other.pid]
        )
        kill(first)
        if end == "rolled back":
            raw.query("SELECT pg_terminate_backend(unnest(%s::integer[]))", [waiting])
        other.rollback()
        wait_until(lambda: mails(stage), 30, "there is a mail")
        wait_until(lambda: LeaderTerm.objects.get().term == 2, 20, "the second leads")
        raw_news = "SELECT count(*) FROM pgjobs_job AS j, pgjobs_notice AS n WHERE j.name = 'shop.pay'"
        assert raw.value(f"{raw_news} AND j.finished_at >= n.finished_at") == 0
    finally:
        raw.query("DROP TRIGGER IF EXISTS pgjobs_test ON pgjobs_job")
        raw.query("DROP FUNCTION pgjobs_test_waits()")
    assert [counted(mail) for mail in mails(stage)] == [7]
    assert len(deliveries()) == 1


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A mail server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_mail_server_that_hangs_harms_nobody(
    worker: Workers, stage: Stage, raw: RawDatabase, silent_port: int
) -> None:
    """One place is taken for ten seconds at a time, others work; in the end one line says it, and no notice does."""
    smtp = "django.core.mail.backends.smtp.EmailBackend"
    mail = mailing(stage, EMAIL_BACKEND=smtp, EMAIL_HOST="127.0.0.1", EMAIL_PORT=silent_port)
    started = worker(threads=2, conf=notified(every_seconds=1), env=mail)
    wait_until(begun, 10, "a leader looks")
    executors = started.executors()
    fail(raw, 3)
    wait_until(lambda: [job.state for job in deliveries()] == ["running"], 10, "it is being delivered")
    fail(raw, 4)
    ended(*(jobs.effect.register(n) for n in range(20)), timeout=5)
    [delivery] = deliveries()
    assert delivery.state == "running", "the others did not wait for it"
    wait_until(lambda: history(delivery) == [(1, "failed")], 20, "it has failed")
    assert "timed out" in read(delivery).error
    Job.objects.filter(pk=delivery.pk).update(max_attempts=F("attempt") + 1)
    Job.objects.filter(pk=delivery.pk).reschedule(delay=0)
    [delivery] = ended(delivery, timeout=20)
    assert (delivery.outcome, delivery.error_class) == ("abandoned", "smtplib.SMTPServerDisconnected")
    assert len(re.findall(rf" ERROR .* job={delivery.pk} ", started.log)) == 1
    wait_until(lambda: len(deliveries()) == 2, 15, "there is the next")
    [digest] = deliveries()[1].payload["args"]
    assert {group["name"]: group["jobs"] for group in digest["groups"]} == {"shop.pay": 4}
    assert started.executors() == executors
    deliveries()[1].cancel(mode="kill")
    ended(deliveries()[1])


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), Handler) as serving:
        serving.got = []
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join(patience(10))


def test_a_webhook_gets_hostile_names_as_harmless_ones(worker: Workers, raw: RawDatabase, server: Answering) -> None:
    """And neither arguments nor messages."""
    url = f"http://127.0.0.1:{server.server_address[1]}/hook/s3cret"
    started = worker(conf=notified(to="django_pgjobs.notifying.webhook", url=url))
    wait_until(begun, 10, "a leader looks")
    for name in ("<b>x</b>", "a\r\nSubject: b", "\u202egpj.exe", "\x1b[2J", "n" * 10**7):
        fail(raw, 1, name)
    jobs.doomed.using(max_attempts=1).register()
    wait_until(lambda: server.got, 15, "it was posted")
    names = [group["name"] for _, _, body in server.got for group in body["groups"]]
    assert all(name.isprintable() and len(name) <= 200 for name in names)
    shown = json.dumps([body for _, _, body in server.got])
    assert "secret" not in shown
    assert "s3cret" not in started.log
    assert len(shown) < 20_000
