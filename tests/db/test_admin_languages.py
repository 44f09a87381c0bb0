"""The admin in the language that a browser asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils import translation
from django.utils.html import strip_tags

from django_pgjobs.models import Job
from tests.plugins.fix_admin import LIST, html, make_one_of_each

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known", "negotiated")]

PAGES = ("job/", "job/{}/change/", "overview/", "heartbeat/", "cronentry/", "queuestate/", "queuestate/add/", "action/")


@pytest.fixture
def negotiated(settings: Any) -> Iterator[None]:
    """The project takes the language from the request; that of the thread is as before, afterwards."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    with translation.override(settings.LANGUAGE_CODE):
        yield


def page(client: Client, path: str, language: str) -> str:
    """The words of a page in a language."""
    answer = client.get(path, headers={"Accept-Language": language})
    assert answer.status_code == 200
    assert answer.headers["Content-Language"] == language
    return " ".join(strip_tags(html(answer)).split())


def test_a_german_reads_german(root: Client) -> None:
    rows = make_one_of_each()
    listed = page(root, LIST, "de")
    for words in ("Hintergrundjobs", "Warteschlange", "Ausgewählte Jobs abbrechen…", "wird wiederholt", "geparkt"):
        assert words in listed
    for words in ("Background jobs", "Cancel selected", "retrying"):
        assert words not in listed
    job = page(root, f"/admin/pgjobs/job/{rows['retrying'].pk}/change/", "de")
    for words in ("Zustand", "Argumente", "Versuch", "wird er am", "Abbrechen", "Jetzt ausführen"):
        assert words in job, job
    asked = root.post(
        LIST, {"action": "cancel", "_selected_action": [rows["ready"].pk]}, headers={"Accept-Language": "de"}
    )
    confirmed = " ".join(strip_tags(html(asked)).split())
    assert "Diese Jobs abbrechen?" in confirmed
    assert "Ja, ich bin sicher" in confirmed
    done = root.post(
        LIST,
        {
            "action": "cancel",
            "_selected_action": [rows["ready"].pk],
            "mode": "ask",
            "confirmed": "yes",
            "reason": "doppelt",
        },
        headers={"Accept-Language": "de"},
        follow=True,
    )
    assert "Abbrechen (ask): 1 geändert. Grund: doppelt." in " ".join(strip_tags(html(done)).split())
    assert Job.objects.get(pk=rows["ready"].pk).outcome == "cancelled"


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", "Hintergrundjobs"),
        ("es", "Trabajos en segundo plano"),
        ("fr", "Tâches d’arrière-plan"),
        ("ja", "バックグラウンドジョブ"),
    ],
)
def test_every_page_is_shown_in_every_language(root: Client, language: str, words: str) -> None:
    rows = make_one_of_each()
    for path in PAGES:
        for row in rows.values() if "{}" in path else (None,):
            shown = page(root, f"/admin/pgjobs/{path.format(row.pk if row else '')}", language)
            assert words in shown, path
