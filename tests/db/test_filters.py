"""A filter of lists of jobs is added by one object: the admin's list, its search and the shell know it."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError
from django.db.models import Q
from django.test import Client

from django_pgjobs.models import Job
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation import filters
from django_pgjobs.presentation.filters import Filter
from django_pgjobs.presentation.job_search import JobSearch
from tests.plugins.fix_admin import LIST, act, html, ids_on, make
from tests.plugins.shell import pgjobs

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

URGENCY = Filter(
    name="urgency", choices=("high", "low"), title="urgency", metavar="URGENCY", help="Jobs of this urgency.",
    condition=lambda word: Q(priority__gt=0) if word == "high" else Q(priority__lte=0),
    offered=lambda chosen: [("high", "High ones"), ("low", "Low ones")],
)  # fmt: skip


@pytest.fixture
def urgent(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(filters, "FILTERS", (*filters.FILTERS, URGENCY))
    make()
    return make(priority=5)


def test_the_admin_lists_by_it_and_offers_it(urgent: Job, root: Client) -> None:
    page = root.get(LIST, {"urgency": "high"})
    assert ids_on(page) == [urgent.pk]
    assert "High ones" in html(page)
    assert root.get(LIST, {"urgency": "no"}).headers["Location"] == f"{LIST}?e=1"


def test_the_search_takes_its_word(urgent: Job, root: Client) -> None:
    assert ids_on(root.get(LIST, {"q": "urgency:high charge"})) == [urgent.pk]
    assert JobSearch.of({}, "urgency:no").complaint == "urgency: takes high or low, not “no”."
    assert JobSearch.of({"urgency": "low"}, "").words == "urgency low"
    assert JobSearch.of({"urgency": "low"}, "").bounded, "no index leads to them"


def test_the_shell_lists_and_acts_by_it(urgent: Job) -> None:
    assert [row["id"] for row in json.loads(pgjobs("list", "--urgency", "high", "--format", "json")[1])] == [urgent.pk]
    assert pgjobs("cancel", "--urgency", "high")[0] == 0
    assert Job.objects.get(outcome="cancelled").pk == urgent.pk


def test_an_action_on_the_whole_list_keeps_to_it(urgent: Job, root: Client) -> None:
    act(root, "cancel", [urgent], "?urgency=high", select_across="1", confirmed="1", mode="ask", reason="")
    assert Job.objects.get(outcome="cancelled").pk == urgent.pk
    assert ActionPart.objects.get().job_ids == [urgent.pk]


def test_without_it_nothing_knows_it() -> None:
    assert JobSearch.of({}, "urgency:high").text == "urgency:high"
    with pytest.raises(CommandError, match="unrecognized arguments: --urgency"):
        pgjobs("list", "--urgency=high")
