"""What stands around a job, as the admin and the shell show it."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_pgjobs import Batch, Flow, job
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_admin import LIST
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")


@job(name="seen.fails", max_attempts=1)
def fails(n: int) -> None:
    if n:
        raise ValueError("it fails")


@job(name="seen.after")
def after() -> None: ...


def failed() -> Batch:
    with Batch("newsletter <7>", succeeded=after.bind(), failed=after.bind()) as batch:
        batch.add_many(fails.bind(n) for n in range(3))
    run_jobs()
    return batch


def page(client: Client, job_id: int) -> str:
    client.force_login(User.objects.create_superuser("operator"))
    response = client.get(f"{LIST}{job_id}/change/")
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_of_a_batch_shows_figures_failed_members_and_what_comes_after(client: Client) -> None:
    batch = failed()
    shown = page(client, batch.job.pk)
    figures = [">1 succeeded</a>", ">2 abandoned</a>", "0 cancelled", "0 not ended"]
    assert [words for words in figures if words not in shown] == []
    member = Job.objects.filter(name="seen.fails", outcome="abandoned").first()
    assert member is not None
    assert f"{LIST}{member.pk}/change/" in shown
    assert "needed by" in shown.lower()
    assert "newsletter &lt;7&gt;" in shown


def test_the_page_of_a_member_leads_to_its_batch(client: Client) -> None:
    batch = failed()
    member = Job.objects.filter(parent_id=batch.job.pk).first()
    assert member is not None
    assert f"{LIST}{batch.job.pk}/change/" in page(client, member.pk)


def test_the_page_of_a_plain_job_says_nothing_of_flows(client: Client) -> None:
    assert "<h2>Flow</h2>" not in page(client, after.register().pk)


def test_the_tree_of_a_batch_in_the_shell() -> None:
    batch = failed()
    status, out, _ = pgjobs("tree", batch.job.pk)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == f"pgjobs.batch #{batch.job.pk} abandoned: newsletter <7>"
    assert lines[1] == "  members: 3, succeeded 1, abandoned 2, cancelled 0, not ended 0"
    assert [line for line in lines if line.startswith("  seen.fails")] == lines[2:4]
    assert lines[4].startswith("  then (succeeded) seen.after #")
    assert lines[5].startswith("  then (failed) seen.after #")


def test_the_tree_of_a_node_in_the_shell_as_json() -> None:
    flow = Flow("a flow")
    first = flow.add(after.bind())
    second = flow.add(after.bind(), first, when="settled")
    made = flow.register()
    status, out, _ = pgjobs("tree", second.job_id, "--format", "json")
    fields = json.loads(out)
    assert (status, fields["id"], fields["state"]) == (0, second.job_id, "blocked")
    assert fields["parent"] == {"id": made.pk, "name": "pgjobs.flow", "state": "blocked"}
    assert fields["needs"] == [{"rule": "settled", "id": first.job_id, "name": "seen.after", "state": "ready"}]
    assert (fields["members"], fields["dependents"]) == (None, [])
    assert (fields["more_needs"], fields["more_dependents"]) == (0, 0)


def test_a_batch_that_nobody_closes_is_closed_in_the_shell() -> None:
    batch = Batch("forgotten").open()
    batch.add(after.bind())
    assert "open for more" in pgjobs("tree", batch.job.pk)[1]
    status, out, _ = pgjobs("close-batch", batch.job.pk)
    assert (status, out) == (0, f"batch {batch.job.pk} is closed, 1 of 1 members have not ended\n")
    status, out, _ = pgjobs("close-batch", batch.job.pk, "--format", "json")
    assert json.loads(out)["pending"] == 1
    run_jobs()
    assert batch.job.outcome == "succeeded"


def test_what_is_no_batch_is_not_closed() -> None:
    assert pgjobs("close-batch", after.register().pk)[0] == 1
    assert pgjobs("close-batch", 9_000_000)[0] == 1
    assert pgjobs("tree", 9_000_000)[0] == 1
