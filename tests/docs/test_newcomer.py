"""Tasks of a newcomer, written as the documentation says and run by a real worker."""

from __future__ import annotations

from tests.docs.fresh_project import Project
from tests.docs.pages import ROOT, Block

HERE = ROOT / "tests" / "docs" / "test_newcomer.py"


def follow(project: Project, *blocks: tuple[str, str]) -> None:
    for number, (language, text) in enumerate(blocks):
        project.follow(Block(HERE, number, language, text.lstrip("\n")))


MAIL = """
# shop/jobs.py
from django.core.mail import send_mail

from django_pgjobs import Backoff, job


@job(max_attempts=4, backoff=Backoff(0.2))
def send_welcome(address: str) -> None:
    send_mail("Welcome", "Hello", "shop@example.org", [address])
"""

VIEW = """
# shop/views.py
from django.contrib.auth.models import User
from django.db import transaction

from shop.jobs import send_welcome


def sign_up(name: str, address: str) -> None:
    with transaction.atomic():
        User.objects.create(username=name, email=address)
        send_welcome.register(address)
"""


def test_a_mail_after_the_commit_is_retried_three_times(project: Project) -> None:
    project.write("mysite/settings.py", 'EMAIL_HOST, EMAIL_PORT = "127.0.0.1", 9  # no one answers\n')
    follow(
        project,
        ("python", MAIL),
        ("python", VIEW),
        (
            "pycon",
            """
>>> from django_pgjobs.models import Job
>>> from shop.views import sign_up
>>> sign_up("ann", "ann@example.org")
>>> welcome = Job.objects.get().wait(timeout=30)
>>> welcome.state, welcome.attempt, welcome.attempts.count()
('abandoned', 4, 4)
>>> welcome.error
'ConnectionRefusedError: …'
""",
        ),
    )


CRON = """
# shop/jobs.py
from django_pgjobs import Cron, job


@job(cron=Cron("30 2 * * *", tz="Europe/Berlin", name="nightly"))
def clean_up() -> str:
    return "clean"
"""


def test_a_nightly_job_in_berlin_is_on_the_list_and_runs(project: Project) -> None:
    follow(
        project,
        ("python", CRON),
        (
            "console",
            """
$ python manage.py pgjobs crons list
ENTRY    STATUS  EXPRESSION  ZONE           JOB                 LAST FIRE  NEXT FIRE            NOTE
nightly  on      30 2 * * *  Europe/Berlin  shop.jobs.clean_up  …
$ python manage.py pgjobs crons run-now nightly
…
""",
        ),
        (
            "pycon",
            """
>>> from django_pgjobs.models import Job
>>> Job.objects.get(cron_entry="nightly").value(timeout=30)
'clean'
""",
        ),
    )


PYTEST = """
# shop/test_welcome.py
import pytest
from django.core import mail

from django_pgjobs.testing import run_jobs
from shop.jobs import send_welcome


@pytest.mark.django_db
def test_a_welcome_is_sent():
    send_welcome.register("ann@example.org")
    run_jobs()
    assert [message.to for message in mail.outbox] == [["ann@example.org"]]
"""


def test_a_job_is_tested_by_pytest(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nDJANGO_SETTINGS_MODULE = mysite.settings\n")
    run = "\n$ pytest -q -p no:cacheprovider shop\n.…\n1 passed…\n"
    follow(project, ("python", MAIL), ("python", PYTEST), ("console", run))


SAGA = """
# shop/jobs.py
from django_pgjobs import Abandon, JobContext, job


@job
def reserve(order: int) -> str:
    return f"goods of {order}"


@reserve.undo()
def give_back(context: JobContext, order: int) -> str:
    return f"gave back the {context.target.result}"


def send(order: int) -> None:
    raise Abandon("no parcel service")


@job
def fulfil(context: JobContext, order: int) -> None:
    context.step.using(undo=give_back)(reserve, order)
    context.step(send, order)
"""


def test_a_saga_is_undone(project: Project) -> None:
    follow(
        project,
        ("python", SAGA),
        (
            "pycon",
            """
>>> from django_pgjobs.models import Job
>>> from shop.jobs import fulfil
>>> order = fulfil.register(7).wait(timeout=30)
>>> order.state, order.error
('abandoned', 'Abandon: no parcel service')
>>> Job.objects.get(name="pgjobs.undo", target_id=order.pk).wait(timeout=30).state
'succeeded'
>>> Job.objects.get(name="shop.jobs.reserve.undo").result
'gave back the goods of 7'
""",
        ),
    )


ELSEWHERE = """
# shop/mail_jobs.py
from django_pgjobs import job


@job
def send_letter(to: str) -> str:
    return f"sent to {to}"
"""

LETTER = """
>>> from shop.mail_jobs import send_letter
>>> send_letter.register("ann").value(timeout=30)
'sent to ann'
"""

URLS = """
# mysite/urls.py
import shop.mail_jobs

urlpatterns = []
"""


def test_jobs_in_a_module_that_modules_names_run_and_others_are_a_warning(project: Project) -> None:
    follow(project, ("python", ELSEWHERE), ("python", URLS))
    status, printed = project.run("python manage.py check")
    assert status == 0
    assert "(pgjobs.W014) Workers do not find the job shop.mail_jobs.send_letter" in printed
    assert 'add "shop.mail_jobs" to PGJOBS["MODULES"]' in printed
    project.write("mysite/settings.py", 'PGJOBS = {"MODULES": ["shop.*_jobs"]}\n')
    follow(project, ("pycon", LETTER))
