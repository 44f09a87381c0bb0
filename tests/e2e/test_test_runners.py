"""A project's own tests that run a real worker: ``call_command("runjobs", until_idle=True)`` under its test runner.

Each test makes a project in an empty directory, with its own databases on the server of the suite, and runs that
project's tests as its owner would. A connection that is left keeps the runner from dropping its database, and fails it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from django.db import connection

from tests.plugins.fix_db import patience
from tests.plugins.fix_worker import ROOT, database_url

SETTINGS = """
    import environ

    SECRET_KEY = "tests"
    USE_TZ = True
    DEBUG = True
    INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_pgjobs", "shop"]
    DATABASES = {"default": {**environ.Env.db_url_config(%r), "NAME": %r}}
    EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
"""

MAILERS = 'MAILERS = {"default": {"BACKEND": "django.core.mail.backends.smtp.EmailBackend"}}\n'

JOBS = """
    from django.contrib.auth.models import User
    from django.core.mail import send_mail
    from django_pgjobs import job

    @job
    def welcome(user_id: int) -> str:
        user = User.objects.get(pk=user_id)
        send_mail("Welcome", user.username, "shop@example.org", [user.email])
        return user.email
"""

TESTS = """
    import gc, signal, sys
    from django.contrib.auth.models import User
    from django.core import mail
    from django.core.management import CommandError, call_command
    from django.test import TestCase, TransactionTestCase
    from django_pgjobs.models import Job
    from shop.jobs import welcome

    class RunWorker:
        inline = False

        def test_a_worker_runs_the_jobs_of_the_test(self):
            before = (gc.get_threshold(), sys.getswitchinterval(), signal.getsignal(signal.SIGTERM))
            users = [User.objects.create(username=name, email=f"{name}@example.org") for name in ("ann", "ben")]
            jobs = [welcome.register(user.pk) for user in users]

            call_command("runjobs", until_idle=True, processes=1, inline=self.inline, verbosity=0)

            for job in jobs:
                job.refresh_from_db()
            assert [job.state for job in jobs] == ["succeeded", "succeeded"], [job.error for job in jobs]
            assert sorted(message.to[0] for message in mail.outbox) == ["ann@example.org", "ben@example.org"]
            assert mail.outbox[0].subject == "Welcome"
            assert (gc.get_threshold(), sys.getswitchinterval(), signal.getsignal(signal.SIGTERM)) == before

    class ProcessesTest(RunWorker, TransactionTestCase):
        pass

    class InlineTest(RunWorker, TransactionTestCase):
        inline = True

    class InTransactionTest(TestCase):
        def test_a_worker_refuses_a_transaction_that_hides_the_jobs(self):
            with self.assertRaisesMessage(CommandError, "TransactionTestCase"):
                call_command("runjobs", until_idle=True)
            assert Job.objects.count() == 0
"""

PYTEST = """
    import pytest
    from django.core import mail
    from django.core.management import call_command
    from django.contrib.auth.models import User
    from shop.jobs import welcome

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("inline", [False, True])
    def test_a_worker_runs_the_jobs_of_the_test(inline, mailoutbox):
        job = welcome.register(User.objects.create(username="ann", email="ann@example.org").pk)
        call_command("runjobs", until_idle=True, processes=1, inline=inline)
        job.refresh_from_db()
        assert (job.state, job.result) == ("succeeded", "ann@example.org"), job.error
        assert [message.to for message in mailoutbox] == [["ann@example.org"]]
"""


class Project:
    """A project in a directory of its own."""

    def __init__(self, place: Path, database: str) -> None:
        self.place = place
        self.write("mysite/__init__.py", "")
        self.write("shop/__init__.py", "")
        self.write("shop/jobs.py", JOBS)
        self.write("mysite/settings.py", SETTINGS % (database_url(), database))
        self.write("mysite/settings.py", f"import django\nif django.VERSION >= (6, 1):\n    {MAILERS}", append=True)

    def write(self, name: str, text: str, *, append: bool = False) -> None:
        path = self.place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if append else "") + dedent(text))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        known = ("DATABASE_URL", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
        environment = {key: value for key, value in os.environ.items() if key not in known}
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.place,
            env={**environment, "DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience(120),
        )


@pytest.fixture
def project(tmp_path: Path, django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[Project]:
    name = f"pgjobs_project_{os.getpid()}"
    with django_db_blocker.unblock(), connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(f'CREATE DATABASE "{name}"')
        yield Project(tmp_path, name)
        cursor.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [f"test_{name}"])
        left = [database for (database,) in cursor.fetchall()]
        for database in (name, *left):
            cursor.execute(f'DROP DATABASE "{database}" WITH (FORCE)')
    assert left == [], "the runner could not drop its databases"


@pytest.mark.parametrize("options", [(), ("--parallel=2",)], ids=["one-process", "parallel"])
def test_a_worker_runs_under_djangos_test_runner(project: Project, options: tuple[str, ...]) -> None:
    """The executors that a TransactionTestCase starts see its test database, and it can read the mails they sent."""
    project.write("shop/tests.py", TESTS)
    done = project.run("-m", "django", "test", "shop", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 3 tests" in done.stderr


def test_a_worker_runs_under_pytest(project: Project) -> None:
    """The same with pytest-django, whose process has another name for the database too."""
    project.write("tests/test_shop.py", PYTEST)
    done = project.run("-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-q", "--create-db", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
