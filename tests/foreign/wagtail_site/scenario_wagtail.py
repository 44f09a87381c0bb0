"""Wagtail on our backend, with real workers (tasks-front paper 5.2, and 8, point 12)."""

from __future__ import annotations

from pathlib import Path

from django.core.checks import run_checks
from django.db import transaction

from django_pgjobs.models import Job
from tests.e2e.stage import Stage
from tests.foreign.fixtures import StartWorker
from tests.foreign.wagtail_site.making import found, page, picture, references
from tests.foreign.wagtail_site.settings import INDEXING
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ended

REFERENCES = "wagtail.tasks.update_reference_index_task"
DELETING = "wagtail.tasks.delete_file_from_storage_task"
PURGING = "wagtail.contrib.frontend_cache.tasks.purge_urls_from_cache_task"


def names(after: int = 0) -> list[str]:
    """Return the names of all jobs but the first ``after``, in order."""
    return sorted(Job.objects.order_by("id").values_list("name", flat=True)[after:])


def all_ended() -> list[Job]:
    """Wait until every job that there is has ended, and return them."""
    return ended(*Job.objects.order_by("id"), timeout=60)


def test_the_system_checks_have_nothing_to_say_of_the_site() -> None:
    assert [str(each) for each in run_checks()] == []


def test_a_page_made_in_a_rolled_back_transaction_leaves_no_job() -> None:
    class Changed(Exception):
        pass

    try:
        with transaction.atomic():
            page("Never")
            assert Job.objects.count() == 2
            raise Changed
    except Changed:
        assert names() == []


def test_a_committed_page_is_found_by_search_and_references_once_the_worker_has_run(worker: StartWorker) -> None:
    image = picture()
    before = Job.objects.count()
    with transaction.atomic():
        page("Harbour", "A lighthouse was lit.", image)
    assert names(before) == [INDEXING, REFERENCES]
    assert (found("harbour"), references(image)) == ([], 0)
    worker()
    assert {job.state for job in all_ended()} == {"succeeded"}
    assert (found("harbour"), found("lighthouse"), references(image)) == (["Harbour"], ["Harbour"], 1)


def test_the_worker_removes_the_file_of_a_deleted_image(worker: StartWorker) -> None:
    image = picture("Old")
    path = Path(image.file.path)
    with transaction.atomic():
        image.delete()
    assert path.exists()
    assert DELETING in names()
    worker()
    all_ended()
    assert not path.exists()


def test_the_address_of_a_published_page_is_purged_by_the_worker(worker: StartWorker, stage: Stage) -> None:
    made = page("Tide")
    with transaction.atomic():
        made.save_revision().publish()
    assert PURGING in names()
    assert stage.count("purged") == 0
    worker()
    all_ended()
    assert [trace.words for trace in stage.traces("purged")] == [("purged", "/tide/")]


def test_a_worker_killed_in_the_middle_leaves_nothing_undone_once_another_has_started(
    worker: StartWorker, stage: Stage
) -> None:
    image = picture()
    titles = [*(f"Wreck {n}" for n in range(10)), "Held 1", "Held 2", *(f"Wreck {n}" for n in range(10, 20))]
    for title in titles:
        with transaction.atomic():
            page(title, picture=image).save_revision().publish()
    count = Job.objects.count()
    conf = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0}
    first = worker(conf=conf, threads=2)
    wait_until(lambda: stage.count("at") == 2, 60, "both threads are in the middle of a purge")
    first.kill()
    assert 20 < Job.objects.filter(finished_at=None).count() < count - 20
    stage.open("held")
    worker(conf=conf, threads=2)
    assert {job.state for job in all_ended()} == {"succeeded"}
    assert Job.objects.count() == count
    assert (len(found("wreck")), len(found("held")), references(image)) == (20, 2, 22)
    assert {trace.words[1] for trace in stage.traces("purged")} == {
        f"/{title.lower().replace(' ', '-')}/" for title in titles
    }


def test_ten_saves_in_a_row_are_indexed_once(worker: StartWorker) -> None:
    made = page("Draft 0")
    worker("--until-idle", ready=False).wait()
    before = Job.objects.count()
    for number in range(1, 11):
        with transaction.atomic():
            made.title = f"Draft {number}"
            made.save()
    assert names(before) == [INDEXING, *[REFERENCES] * 10]
    worker()
    assert {job.attempt for job in all_ended()} == {1}
    assert found("draft") == ["Draft 10"]


def test_indexing_a_page_that_is_gone_gives_up_at_once(worker: StartWorker) -> None:
    page("Fog").delete()
    worker()
    jobs = all_ended()
    assert {(job.name, job.state, job.attempt) for job in jobs if job.name in (INDEXING, REFERENCES)} == {
        (INDEXING, "abandoned", 1),
        (REFERENCES, "abandoned", 1),
    }
