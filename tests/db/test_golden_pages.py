"""What the pages of the admin show of the rows of ``test_golden_shell``: their own parts, as kept in ``golden/``."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from django.test import Client

from django_pgjobs.models import CronEntry, EventState, Heartbeat, Job
from django_pgjobs.steering.events import send_by_operator
from tests.db.test_golden_shell import difference, rows
from tests.plugins.fix_admin import CLAIM, LIST, WORKER, html, now_plus

pytestmark = pytest.mark.usefixtures("committed", "rows")

__all__ = ["rows"]

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "wbr"}
OURS = re.compile(r"field-\w+|readonly|pgjobs-(?!(?:page|overview)\b)[\w-]+")
"""Classes of what this package shows: cells of lists, values of forms, and its own parts of a page."""

ADMIN = "/admin/pgjobs"
PAGES = [
    LIST, f"{LIST}?queue=mail",
    *(f"{LIST}?state={state}" for state in ("running", "cancelled", "abandoned", "retrying")),
    *(f"{LIST}{job_id}/change/" for job_id in (1, 3, 4, 6, 9, 11, 12, 13)), f"{ADMIN}/heartbeat/",
    f"{ADMIN}/heartbeat/{WORKER}/change/", f"{ADMIN}/cronentry/", f"{ADMIN}/cronentry/report/change/",
    f"{ADMIN}/queuestate/", f"{ADMIN}/eventstate/", f"{ADMIN}/eventstate/order.ok_3A7/change/", f"{ADMIN}/action/",
    f"{ADMIN}/action/1/change/", f"{ADMIN}/action/2/change/", f"{ADMIN}/overview/",
]  # fmt: skip


class Shown(HTMLParser):
    """Collects the texts of our parts of a page: their class, and what stands in them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = [each for each in (dict(attrs).get("class") or "").split() if OURS.fullmatch(each)]
        if not self.depth and classes and tag not in VOID:
            self.lines.append(f"{classes[0]}:")
            self.depth = 1
        elif self.depth and tag not in VOID:
            self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= self.depth > 0 and tag not in VOID

    def handle_data(self, data: str) -> None:
        if self.depth and data.strip():
            self.lines[-1] += f" {' '.join(data.split())}"


def shown(client: Client, url: str) -> str:
    """Return the parts of a page, one a line; a number that grows with time has a stand-in."""
    parser = Shown()
    parser.feed(html(client.get(url)))
    text = "\n".join([f"== {url}", *parser.lines, ""])
    text = re.sub(r"\d+\.\d+ (ms|s)\b|\b\d+ (ms|s|min|hours?|minutes?)\b(, \d+ minutes?)?", "<span>", text)
    text = re.sub(r"\bin \d+ \w+(, \d+ \w+)?", "in <time>", text)
    return re.sub(r"(?<![\d:])\d\d:\d\d(?!:?\d)", "<clock>", text)


def test_pages_show_what_they_showed(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    Job.objects.filter(outcome="succeeded").update(
        options={"on_crash": "abandon"}, headers={"x": 1}, key="k1", idempotency_key="i1"
    )
    Job.objects.filter(claim_id=CLAIM).update(progress={"n": 1, "total": 4, "message": "<m>"})
    Heartbeat.objects.filter(pk=WORKER).update(
        deaths=2, died_at=now_plus(-100), death="killed", suspects={"running": [4]}, suspects_since=now_plus(-50)
    )
    send_by_operator("default", "order.ok:7", {"ok": True}, by="ann")
    EventState.objects.create(name="order.ok:8", waits=2)
    Job.objects.filter(pk=1).cancel(by="ann", reason="no <b>")
    CronEntry.objects.get(pk="report").pause(by="ann", reason="holiday")
    pages = "".join(shown(root, url) for url in PAGES)
    assert difference("pages.txt", pages) == ""
    monkeypatch.setattr("tests.db.test_golden_shell.WRITES", False)
    assert "+field-id: 99" in difference("pages.txt", "field-id: 99\n")
