"""django-pictures on our backend, with real workers (tasks-front paper 5.2, and 8, point 13)."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from django.core.checks import run_checks
from django.core.files.base import ContentFile
from django.db import transaction
from PIL import Image as Pixels

from django_pgjobs.models import Job
from tests.foreign.fixtures import StartWorker
from tests.foreign.pictures_site.models import Photo
from tests.plugins.fix_worker import ended

PROCESSING = "pictures.tasks.process_picture_with_django_tasks"


def photo(name: str) -> Photo:
    """Store a photo of one colour, larger than what is derived from it."""
    content = BytesIO()
    Pixels.new("RGB", (800, 600), "teal").save(content, "PNG")
    return Photo.objects.create(picture=ContentFile(content.getvalue(), f"{name}.png"))


def derived(made: Photo) -> list[Path]:
    """Return the paths that the files derived from a photo have, or will have."""
    return sorted(Path(each.path) for each in made.picture.get_picture_files_list())


def size(path: Path) -> tuple[int, int]:
    """Return width and height of an image."""
    with Pixels.open(path) as image:
        return image.width, image.height


def run(worker: StartWorker) -> None:
    """Start a worker and wait until all jobs have succeeded."""
    worker()
    assert {job.state for job in ended(*Job.objects.all(), timeout=60)} == {"succeeded"}


def test_the_system_checks_have_nothing_to_say_of_the_site() -> None:
    assert [str(each) for each in run_checks()] == []


def test_a_photo_saved_in_a_rolled_back_transaction_leaves_no_job() -> None:
    class Changed(Exception):
        pass

    try:
        with transaction.atomic():
            photo("never")
            raise Changed
    except Changed:
        assert not Job.objects.exists()


def test_the_files_derived_from_a_saved_photo_come_from_the_worker(worker: StartWorker) -> None:
    made = photo("saved")
    assert [(job.name, job.queue) for job in Job.objects.all()] == [(PROCESSING, "pictures")]
    assert [path.name for path in derived(made) if path.exists()] == []
    run(worker)
    assert [(path.name, size(path)) for path in derived(made)] == [
        ("200w.webp", (200, 150)),
        ("400w.webp", (400, 300)),
    ]


def test_the_files_derived_from_a_deleted_photo_are_removed_by_the_worker(worker: StartWorker) -> None:
    made = photo("deleted")
    paths = derived(made)
    worker()
    ended(*Job.objects.all(), timeout=60)
    assert all(path.exists() for path in paths)
    made.picture.delete(save=False)
    ended(*Job.objects.all(), timeout=60)
    assert not any(path.exists() for path in paths)
