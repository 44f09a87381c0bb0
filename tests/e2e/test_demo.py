"""The example project as a person meets it: ``python -m example_project.demo`` on a database of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from example_project.indexer import sources
from example_project.indexer.parsing import CannotBeParsed, parse
from example_project.indexer.sources import EXAMPLES, EXAMPLES_PREFIX, locate, source_files
from example_project.indexer.words import terms, words
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT, database_url

FILES = 150
UNREADABLE = {
    "bad_encoding.py.txt": "codec can't decode byte 0xe9",
    "bad_syntax.py.txt": "was never closed, line 4",
    "nul_bytes.py.txt": "null bytes",
}
PATIENT = pytest.mark.timeout(patience(300))
LINE = re.compile(r"^(files|unreadable|lines|imports|classes|functions) +([\d,]+) +([\d,]+)$", re.MULTILINE)


class Database:
    """A database made for these tests."""

    def __init__(self) -> None:
        self.name = f"test_demo_{uuid4().hex[:12]}"
        self.url = database_url(NAME=self.name)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(text).fetchall()

    def has_worker(self) -> bool:
        """Whether a worker has said that it lives."""
        with suppress(psycopg.errors.UndefinedTable):
            return bool(self.query("SELECT FROM pgjobs_heartbeat"))
        return False

    @property
    def environment(self) -> dict[str, str]:
        settings = {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
        return {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}

    def demo(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the demo to its end."""
        return subprocess.run(
            _command(*options), env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=patience(250)
        )

    def inside(self, code: str) -> Any:
        """Run code in the example project; return what it leaves in ``answer``."""
        program = f"import django, json\ndjango.setup()\n{code}\nprint(json.dumps(answer))"
        run = subprocess.run(
            [sys.executable, "-c", program], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)


def _command(*options: str) -> list[str]:
    return [sys.executable, "-m", "example_project.demo", *options]


def _totals(output: str) -> dict[str, tuple[str, str]]:
    return {what: (by_jobs, directly) for what, by_jobs, directly in LINE.findall(output)}


@contextmanager
def made() -> Iterator[Database]:
    new = Database()
    with psycopg.connect(database_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {new.name}")
        try:
            yield new
        finally:
            connection.execute(f"DROP DATABASE {new.name} WITH (FORCE)")


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """One that keeps what the demo left, for tests that change nothing."""
    with made() as database:
        yield database


@pytest.fixture
def empty() -> Iterator[Database]:
    """One for this test alone."""
    with made() as database:
        yield database


@pytest.fixture(scope="module")
def done(database: Database) -> subprocess.CompletedProcess[str]:
    """The demo has run once, over the first files."""
    run = database.demo("--once", "--limit", str(FILES))
    assert run.returncode == 0, run.stdout + run.stderr
    return run


@PATIENT
def test_the_demo_counts_by_jobs_what_is_counted_directly(done: subprocess.CompletedProcess[str]) -> None:
    totals = _totals(done.stdout)
    assert totals["files"] == (str(FILES), str(FILES))
    assert totals["unreadable"] == (str(len(UNREADABLE)), str(len(UNREADABLE)))
    assert len(totals) == 6
    assert all(by_jobs == directly for by_jobs, directly in totals.values())
    assert "The totals are equal." in done.stdout


@PATIENT
def test_the_demo_shows_its_progress(done: subprocess.CompletedProcess[str]) -> None:
    assert f"100 %   {FILES}/{FILES} files read by jobs" in done.stderr


@PATIENT
@pytest.mark.usefixtures("done")
def test_every_job_of_the_demo_has_ended(database: Database) -> None:
    rows = database.query(
        "SELECT name, outcome, count(*) FROM pgjobs_job WHERE (payload #>> '{kwargs,edition}')::int = 1 GROUP BY 1, 2"
    )
    ended = {(name, outcome): count for name, outcome, count in rows}
    assert ended.pop(("library.sum_package", "succeeded")) >= 5
    assert ended == {
        ("library.index_file", "succeeded"): FILES - len(UNREADABLE),
        ("library.index_file", "abandoned"): len(UNREADABLE),
        ("library.publish_report", "succeeded"): 1,
    }


@PATIENT
@pytest.mark.usefixtures("done")
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_parsed_is_an_abandoned_job_with_its_reason(database: Database, name: str) -> None:
    found = database.query(
        "SELECT outcome, attempt, error, problem FROM library_module AS m JOIN pgjobs_job AS j ON j.id = m.job "
        f"WHERE m.path = '{EXAMPLES_PREFIX}{name}' AND j.description = m.path"
    )
    [(outcome, attempt, error, problem)] = found
    assert (outcome, attempt) == ("abandoned", 1)
    assert problem.startswith("cannot be parsed: ")
    assert UNREADABLE[name] in problem
    assert problem in error


@PATIENT
@pytest.mark.usefixtures("done")
def test_a_job_that_runs_twice_writes_the_same(database: Database) -> None:
    before, between, after = database.inside(
        """
from example_project.indexer.jobs import index_file, publish_report
from example_project.indexer.models import Edition, Module, Symbol
from example_project.indexer.totals import totals_of
edition = Edition.objects.get(totals__isnull=False)
answer = [edition.totals]
for path in Module.objects.filter(edition=edition, problem="").values_list("path", flat=True)[:20]:
    index_file(path, edition.pk)
answer += [totals_of(edition), edition.totals]
"""
    )
    assert before == between == after


@PATIENT
@pytest.mark.usefixtures("done")
def test_an_older_edition_writes_nothing_over_a_newer_one(database: Database) -> None:
    answer = database.inside(
        """
from django.db import transaction
from django_pgjobs import Cancel
from django_pgjobs.models import Job
from example_project.indexer.indexing import start_edition
from example_project.indexer.jobs import index_file, publish_report, sum_package
from example_project.indexer.sources import source_files
answer = []
with transaction.atomic():
    paths = source_files(20)
    old, new = start_edition(paths), start_edition(paths)
    index_file(paths[-1], new.pk)
    for call in (index_file.bind(paths[-1], old.pk), sum_package.bind("x", old.pk, 1)):
        try:
            with transaction.atomic():
                call.definition(*call.args)
        except Cancel as error:
            answer.append(str(error))
    states = Job.objects.filter(payload__kwargs__edition=old.pk).values_list("state", flat=True)
    answer.append(sorted(set(states)))
    transaction.set_rollback(True)
"""
    )
    assert answer == ["a newer edition has read this file", "there is a newer edition", ["cancelled"]]


@PATIENT
@pytest.mark.usefixtures("done")
def test_a_cron_entry_refreshes_the_index_unless_it_is_being_read(database: Database) -> None:
    registered, jobs, files, refusal = database.inside(
        """
from django.db import transaction
from django_pgjobs import Cancel
from django_pgjobs.models import CronEntry, Job
from example_project.indexer.jobs import index_file, refresh
from example_project.indexer.models import Edition
with transaction.atomic():
    entry = CronEntry.objects.get(pk="library.refresh")
    job = entry.run_now(by="ann")
    answer = [[job.name, job.cron_entry, entry.status]]
    edition = refresh()
    answer.append(Job.objects.filter(name=index_file.name, payload__kwargs__edition=edition, state="ready").count())
    answer.append(Edition.objects.get(pk=edition).files)
    try:
        refresh()
    except Cancel as error:
        answer.append(str(error).replace(str(edition), "N"))
    transaction.set_rollback(True)
"""
    )
    assert registered == ["library.refresh", "library.refresh", "on"]
    assert jobs == files > 100
    assert refusal == "edition N is being read"


@PATIENT
@pytest.mark.usefixtures("done")
def test_the_page_finds_names_and_takes_any_question(database: Database) -> None:
    pages = database.inside(
        r"""
import random
from django.test import Client
from django.conf import settings
settings.ALLOWED_HOSTS = ["testserver"]
chooser = random.Random(7)
signs = "aZ_9 '\"\\&|!():*<>-.\0\u20ac\u00df\u0130\u4e00\U0001f600"
odd = ["", " ", "\0", "x" * 10_000, "_", "a'b", "\\", "'':*", "<script>alert(1)</script>", "\ufeff", "9" * 300]
odd += ["".join(chooser.choices(signs, k=chooser.randrange(1, 40))) for _ in range(150)]
client = Client()
answer = [sorted({client.get("/", {"q": question}).status_code for question in odd})]
answer += [client.get("/", {"q": q}).content.decode() for q in ("<script>alert(1)", "AbstractEventLoop", "")]
"""
    )
    statuses, script, found, empty = pages
    assert statuses == [200]
    assert "<script" not in script
    assert "&lt;script&gt;alert(1)" in script
    assert "asyncio/events.py:" in found
    assert "/admin/pgjobs/job/?state=abandoned&amp;name=library.index_file" in empty
    assert "cannot be parsed: " in empty


@PATIENT
def test_a_busy_port_makes_the_demo_take_the_next_one_and_ctrl_c_ends_everything(empty: Database) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        demo = subprocess.Popen(
            _command("--limit", "5", "--port", str(port)),
            env=empty.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with demo:
            try:
                served = _served(demo)
                assert served > port
                with urllib.request.urlopen(f"http://127.0.0.1:{served}/") as page:
                    assert page.status == 200
                worker = int(_children(demo.pid)[0])
                demo.send_signal(signal.SIGINT)
                assert demo.wait(patience(60)) == 0
                assert not Path(f"/proc/{worker}").exists()
            finally:
                demo.terminate()


@PATIENT
def test_a_demo_that_is_killed_leaves_no_worker(empty: Database, tmp_path: Path) -> None:
    environment = {**empty.environment, "TMPDIR": str(tmp_path)}  # for the log, which nobody deletes then
    with subprocess.Popen(
        _command("--limit", "5"), env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as demo:
        try:
            wait_until(empty.has_worker, 60, "a worker runs")
            worker = Path(f"/proc/{_children(demo.pid)[0]}")
        finally:
            demo.kill()
    wait_until(lambda: not worker.exists(), 60, "the worker has ended")


def _served(demo: subprocess.Popen[str]) -> int:
    assert demo.stdout is not None
    for line in demo.stdout:
        if said := re.search(r"http://127\.0\.0\.1:(\d+)/admin/", line):
            return int(said[1])
    pytest.fail(f"the demo ended with {demo.wait()} before it served")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@PATIENT
@pytest.mark.slow
def test_the_whole_standard_library_is_read_by_more_than_a_thousand_jobs(empty: Database) -> None:
    run = empty.demo("--once")
    assert run.returncode == 0, run.stdout + run.stderr
    totals = _totals(run.stdout)
    assert int(totals["files"][0].replace(",", "")) > 1000
    assert all(by_jobs == directly for by_jobs, directly in totals.values())


# What needs no database


def test_our_unreadable_files_come_first_and_are_unreadable() -> None:
    assert source_files(3) == [EXAMPLES_PREFIX + name for name in sorted(UNREADABLE)]
    for name, reason in UNREADABLE.items():
        with pytest.raises(CannotBeParsed, match=reason):
            parse(EXAMPLES / name)


def test_django_is_read_too_where_the_library_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ENOUGH", 10**6)
    names = source_files()
    assert len(names) == len(set(names)) > 1000
    assert "django/db/models/query.py" in names
    assert all(locate(name).is_file() for name in names)


def test_a_file_is_read_with_everything_it_nests(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    chain = "if a == 0:\n    pass\n" + "".join(f"elif a == {n}:\n    pass\n" for n in range(1, 900))
    source.write_text(
        f'"""About."""\nimport os\nclass A:\n    async def b(self):\n        "Do."\n        def c(): 0\n{chain}'
    )
    read = parse(source)
    assert [(one.name, one.kind, one.line, one.summary) for one in read.found] == [
        ("A", "class", 3, ""),
        ("A.b", "method", 4, "Do."),
        ("A.b.c", "function", 6, ""),
    ]
    assert (read.lines, read.imports, read.summary) == (6 + 2 * 900, 1, "About.")


def test_names_and_questions_are_split_alike() -> None:
    assert (
        words("NamedTemporaryFile._get_XMLPath2") == "namedtemporaryfile named temporary file get xmlpath2 xml path 2"
    )
    assert terms("TempFile open") == "'temp':* & 'file':* & 'open':*"
    assert terms(" _ \0 '\\") == ""
