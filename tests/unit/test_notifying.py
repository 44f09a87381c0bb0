"""A notice as its recipients get it, and its ways out: a mail, a webhook on a real server, a project's own function."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.mail.backends.smtp import EmailBackend
from django.urls import reverse

from django_pgjobs import checks
from django_pgjobs.exceptions import Cancel
from django_pgjobs.flows.builtin import notify
from django_pgjobs.notifying import FailureNotice, delivery, mail_admins, post, webhook
from django_pgjobs.notifying.notice import notice_of
from tests.plugins.fix_db import patience
from tests.plugins.mailing import LOCMEM, SMTP, use_mailer

GROUP = {
    "name": "shop.pay",
    "error_class": "shop.Declined",
    "jobs": 5,
    "first_at": "2026-03-01T10:00:00+01:00",
    "last_at": "2026-03-01T10:05:00+01:00",
    "ids": [7, 8, 9],
    "releases": ["r1"],
}
DIGEST = {
    "since": "2026-03-01T10:00:00+01:00",
    "until": "2026-03-01T10:05:00+01:00",
    "jobs": 5,
    "at_least": False,
    "groups": [GROUP],
    "other_groups": 0,
    "problems": [],
}
PROBLEM = ["silent", "Worker w was last heard from 25 s ago, and has not stopped."]

urlpatterns: list[Any] = []
"""Of a project without an admin."""

received: list[FailureNotice] = []


def receive(notice: FailureNotice) -> None:
    """A project's own function."""
    received.append(notice)


async def areceive(notice: FailureNotice) -> None:
    """Nobody would wait for it."""


def digest(**given: Any) -> dict[str, Any]:
    return {**DIGEST, **given}


def group(**given: Any) -> dict[str, Any]:
    return {**GROUP, **given}


@pytest.fixture(autouse=True)
def nothing_received() -> None:
    received.clear()


# What it says


def test_a_notice_as_text() -> None:
    notice = notice_of(digest(), site="https://shop.example/")
    pages = "\n".join(
        f"  job {pk} https://shop.example{reverse('admin:pgjobs_job_change', args=[pk])}" for pk in (7, 8, 9)
    )
    every = f"https://shop.example{reverse('admin:pgjobs_job_changelist')}?state=abandoned&name=shop.pay"
    assert notice.subject == "5 jobs abandoned: shop.pay (shop.Declined)"
    assert notice.text == (
        "5 jobs abandoned from 2026-03-01 09:00:00 UTC to 2026-03-01 09:05:00 UTC:\n\n"
        "5 × shop.pay (shop.Declined)\n"
        "  2026-03-01 09:00:00 UTC to 2026-03-01 09:05:00 UTC, release r1\n"
        f"{pages}\n  all: {every}\n"
    )


def test_links_are_paths_without_a_site_and_missing_without_an_admin(settings: Any) -> None:
    assert notice_of(digest()).groups[0].links[0] == reverse("admin:pgjobs_job_change", args=[7])
    settings.ROOT_URLCONF = __name__
    without = notice_of(digest(), site="https://shop.example")
    assert (without.groups[0].links, without.groups[0].link) == (("", "", ""), "")
    assert "  job 7\n" in without.text


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        (
            {"jobs": 1, "groups": [group(jobs=1, ids=[7], error_class="")]},
            "1 job abandoned: shop.pay (abandoned by hand)",
        ),
        ({"jobs": 9, "other_groups": 3}, "9 jobs abandoned"),
        ({"jobs": 50_000, "at_least": True, "other_groups": 3}, "at least 50000 jobs abandoned"),
        ({"problems": [PROBLEM]}, f"5 jobs abandoned: shop.pay (shop.Declined), {PROBLEM[1]}"),
        ({"jobs": 0, "groups": [], "since": None, "until": None, "problems": [PROBLEM]}, PROBLEM[1]),
        ({"jobs": 0, "groups": [], "since": None, "until": None, "problems": [PROBLEM, PROBLEM]}, "2 problems"),
    ],
)
def test_a_subject_is_short(given: dict[str, Any], subject: str) -> None:
    notice = notice_of(digest(**given))
    assert notice.subject == subject
    assert bool(notice.jobs) == ("jobs abandoned from" in notice.text or "job abandoned from" in notice.text)
    assert bool(notice.problems) == (f"- silent: {PROBLEM[1]}" in notice.text)
    assert bool(notice.other_groups) == ("3 more names" in notice.text)


def test_where_several_databases_are_served_a_notice_says_of_which_it_is() -> None:
    notice = notice_of(digest(problems=[PROBLEM]), database="default", several=True)
    there = notice_of(digest(), database="shard_22", several=True).groups[0]
    assert there.links[0] == reverse("admin:pgjobs_job_change", args=["shard_5F22:7"])
    assert there.link.endswith("&database=shard_22")
    assert notice.subject.startswith("default: 5 jobs abandoned")
    assert "5 jobs abandoned in the database default from" in notice.text
    assert "  job default:7 " in notice.text
    assert "Problems that have appeared in the database default:" in notice.text


def test_a_notice_of_another_database_says_so() -> None:
    assert "5 jobs abandoned in the database second from" in notice_of(digest(), database="second").text


HOSTILE = [
    "pay\r\nBcc: everybody@shop.example\r\n\r\nhello", "pay\u202egnp.exe", "pay\x1b[2J\x07", "pay\0", "x" * 10**7,
    "pay\u2028line", "\u2066\u2069", "pay\x85next", "", " ", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:12]))
def test_hostile_texts_forge_no_line_and_have_a_bounded_length(text: str, settings: Any, mailoutbox: list[Any]) -> None:
    """Newlines, marks that reverse text, escape sequences, NUL, 10 MB."""
    use_mailer(settings, LOCMEM)
    settings.ADMINS = ["admin@shop.example"]
    hostile = group(name=text, error_class=text, releases=[text])
    notice = notice_of(digest(groups=[hostile], problems=[[text, text]]), database=text)
    assert notice.subject.isprintable()
    assert len(notice.subject) <= 150
    assert len(notice.text.splitlines()) == len(notice.text.split("\n")) - 1
    assert all(line.isprintable() for line in notice.text.split("\n"))
    assert len(notice.text) < 5_000
    mail_admins(notice)
    [sent] = mailoutbox
    assert sent.recipients() == ["admin@shop.example"]
    sent.message().as_bytes()


def test_it_has_a_bounded_number_of_problems() -> None:
    assert len(notice_of(digest(problems=[["c", "x" * 10**5]] * 1000)).text) < 60_000


def test_it_is_json() -> None:
    found = json.loads(json.dumps(notice_of(digest(problems=[PROBLEM])).as_dict()))
    assert found["groups"][0]["first_at"] == "2026-03-01T09:00:00+00:00"
    assert found["since"] == "2026-03-01T09:00:00+00:00"
    assert found["groups"][0]["job_ids"] == [7, 8, 9]
    assert found["problems"] == [{"code": "silent", "text": PROBLEM[1]}]
    assert found["text"].startswith("5 jobs abandoned")


# To whom


def test_the_job_delivers_to_whom_the_setting_names_now(settings: Any) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": f"{__name__}.receive", "site": "https://shop.example"}}
    notify.func(digest())
    assert received[0].groups[0].links[0].startswith("https://shop.example/")
    settings.PGJOBS = {}
    with pytest.raises(Cancel):
        notify.func(digest())


@pytest.mark.parametrize("admins", [["admin@shop.example"], [("Anna", "admin@shop.example")]])
def test_a_mail_to_the_admins(settings: Any, mailoutbox: list[Any], admins: list[Any]) -> None:
    use_mailer(settings, LOCMEM)
    settings.ADMINS, settings.EMAIL_SUBJECT_PREFIX, settings.SERVER_EMAIL = admins, "[Shop] ", "root@shop.example"
    mail_admins(notice_of(digest()))
    [sent] = mailoutbox
    assert (sent.subject, sent.from_email) == ("[Shop] 5 jobs abandoned: shop.pay (shop.Declined)", "root@shop.example")
    assert (sent.to, sent.content_subtype) == (["admin@shop.example"], "plain")
    settings.ADMINS = []
    with pytest.raises(ImproperlyConfigured, match="ADMINS is empty"):
        mail_admins(notice_of(digest()))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_mail_server_that_is_silent_is_given_up(
    settings: Any, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SECONDS", 0.2)
    use_mailer(settings, SMTP, host="127.0.0.1", port=silent_port)
    settings.ADMINS = ["a@shop.example"]
    with pytest.raises(OSError, match="timed out"):
        mail_admins(notice_of(digest()))


def test_a_projects_own_timeout_is_kept(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_mailer(settings, SMTP, host="127.0.0.1", timeout=3)
    settings.ADMINS = ["a@shop.example"]
    mailers: list[Any] = []
    monkeypatch.setattr(EmailBackend, "send_messages", lambda self, messages: mailers.append(self))
    mail_admins(notice_of(digest()))
    assert mailers[0].timeout == 3


# The webhook


class Answering(ThreadingHTTPServer):
    """A server that notes what it got, and answers as told."""

    status = 204
    said = b""
    location = ""
    got: list[tuple[str, dict[str, str], Any]]


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), json.loads(body)))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(self.server.said)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), Handler) as serving:
        serving.got = []
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join(patience(10))


@pytest.fixture
def address(server: Answering) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/hook/s3cret?a=1"


def test_the_webhook_posts_json(server: Answering, address: str, settings: Any) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "django_pgjobs.notifying.webhook", "url": address}}
    notify.func(digest())
    [(path, headers, body)] = server.got
    assert (path, headers["Content-Type"]) == ("/hook/s3cret?a=1", "application/json")
    assert body == json.loads(json.dumps(notice_of(digest()).as_dict()))


@pytest.mark.parametrize("status", [302, 400, 500])
def test_any_other_answer_is_a_failure_that_names_no_secret(server: Answering, address: str, status: int) -> None:
    """A redirect is not followed: it might lead anywhere."""
    server.status, server.said, server.location = status, b"no\r\n" + b"x" * 10**6, address
    with pytest.raises(OSError, match=f"127.0.0.1 answered with status {status}: no") as raised:
        post(address, {})
    assert len(str(raised.value)) < 300
    assert "s3cret" not in str(raised.value)
    assert len(server.got) == 1


def test_a_silent_server_is_given_up(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        post(f"http://127.0.0.1:{silent_port}/", {})


def test_a_server_that_speaks_no_http_is_a_failure() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"220 mail.shop.example ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="answered with no HTTP: BadStatusLine"):
            post(f"http://127.0.0.1:{listener.getsockname()[1]}/", {})
        thread.join(patience(10))


def test_https_shows_its_certificate(server: Answering, address: str) -> None:
    """This one speaks no TLS: the way is chosen by the scheme."""
    with pytest.raises(OSError, match=r"SSL|ssl|record"):
        post(address.replace("http:", "https:"), {})
    assert server.got == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://shop.example/", "shop.example", "http://", "https://a b/", ""]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="https or http"):
        post(url, {})


def test_the_webhook_needs_its_url(settings: Any) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "django_pgjobs.notifying.webhook"}}
    with pytest.raises(ImproperlyConfigured, match='needs "url"'):
        webhook(notice_of(digest()))
    assert [message.id for message in checks.check_notices()] == ["pgjobs.E018"]


# The checks


@pytest.mark.parametrize(
    ("to", "found"),
    [
        ("mail_admins", ["W008"]),
        (f"{__name__}.receive", []),
        (f"{__name__}.areceive", ["E018"]),
        (f"{__name__}.GROUP", ["E018"]),
        (f"{__name__}.Answering", ["E018"]),
        ("nowhere.at.all", ["E018"]),
        ("mail_admin", ["E018"]),
    ],
)
def test_what_delivers_must_be_there(settings: Any, to: str, found: list[str]) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": to}}
    assert [(message.id or "").removeprefix("pgjobs.") for message in checks.check_notices()] == found
    settings.ADMINS = ["a@shop.example"]
    assert [message.id for message in checks.check_notices() if message.id == "pgjobs.W008"] == []


def test_its_queues_must_be_allowed(settings: Any) -> None:
    settings.PGJOBS = {"QUEUES": ["mail"], "NOTIFY_FAILURES": {"to": "mail_admins", "queues": ["mial", "mail"]}}
    [message] = checks.check_named_queues()
    assert "NOTIFY_FAILURES names the queue 'mial'" in message.msg
