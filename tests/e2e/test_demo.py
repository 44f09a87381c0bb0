"""The example project as a person meets it: ``python -m example_project.demo`` on a database of its own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_project.indexer import sources
from example_project.indexer.parsing import CannotBeParsed, parse
from example_project.indexer.sources import EXAMPLES, EXAMPLES_PREFIX, locate, source_files
from example_project.indexer.words import terms, words
from tests.plugins.demo import Database, children, command, made, served_by
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT

FILES = 150
UNREADABLE = {
    "bad_encoding.py.txt": "codec can't decode byte 0xe9",
    "bad_syntax.py.txt": "was never closed, line 4",
    "nul_bytes.py.txt": "null bytes",
}
PATIENT = pytest.mark.timeout(patience(300))
LINE = re.compile(r"^(files|unreadable|lines|imports|classes|functions) +([\d,]+) +([\d,]+)$", re.MULTILINE)


def _totals(output: str) -> dict[str, tuple[str, str]]:
    return {what: (by_jobs, directly) for what, by_jobs, directly in LINE.findall(output)}


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
    totals = re.findall(r"100 % +(\d+)/\1 jobs have ended, and the report waits for approval", done.stderr)
    assert [int(total) > FILES for total in totals] == [True, True]


@PATIENT
def test_the_demo_says_how_the_flow_ended(done: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"The flow, job \d+, ended as abandoned\. 3 of \d+ members did not succeed\.", done.stdout)


@PATIENT
def test_the_demo_approves_one_report_and_refuses_another(done: subprocess.CompletedProcess[str]) -> None:
    """And says that it does so itself."""
    assert done.stdout.count("Nobody is asked with --once: the demo itself ") == 2
    assert done.stdout.count("The totals are equal.") == 2
    undone = re.findall(r"undone by job \d+, (\S+), which succeeded", done.stdout)
    assert undone == ["pgjobs.undo", "library.put_on_page.undo", "library.store_totals.undo"]
    assert "refused: one report is enough for a demo" in done.stdout
    assert done.stdout.endswith("The page shows the report of edition 1.\n")


@PATIENT
@pytest.mark.usefixtures("done")
def test_an_approved_report_stays_and_of_a_refused_one_nothing_is_left(database: Database) -> None:
    approved, refused = database.query(
        "SELECT e.totals IS NULL, e.published_at IS NULL, e.approved_at IS NULL, e.problem, j.outcome, j.result "
        "FROM library_edition AS e JOIN pgjobs_job AS j ON j.parent_id = e.flow AND j.name = 'library.publish_report' "
        "ORDER BY e.id"
    )
    assert approved == (False, False, False, "", "succeeded", "demo")
    why = "Abandon: refused: one report is enough for a demo"
    assert refused == (True, True, True, f"library.publish_report: {why}", "abandoned", None)
    steps = database.query(
        "SELECT m.name, m.kind, j.outcome FROM pgjobs_memo AS m JOIN pgjobs_job AS j ON j.id = m.job_id "
        "WHERE j.name = 'library.publish_report' ORDER BY m.id"
    )
    before = [("library.store_totals", "step"), ("library.put_on_page", "step")]
    assert [step[:2] for step in steps if step[2] == "abandoned"] == [*before, ("library.approval:2", "event")]
    assert [step[0] for step in steps if step[2] == "succeeded"] == [
        *(name for name, _ in before), "library.approval:1", "note_approval",
    ]  # fmt: skip


@PATIENT
@pytest.mark.usefixtures("done")
def test_every_job_of_the_demo_has_ended(database: Database) -> None:
    rows = database.query(
        "SELECT j.name, j.outcome, count(*) FROM pgjobs_job AS j JOIN library_edition AS e "
        "ON e.flow IN (j.id, j.parent_id) WHERE e.id = 1 GROUP BY 1, 2"
    )
    ended = {(name, outcome): count for name, outcome, count in rows}
    assert ended.pop(("library.sum_package", "succeeded")) >= 5
    assert ended == {
        ("library.index_file", "succeeded"): FILES - len(UNREADABLE),
        ("library.index_file", "abandoned"): len(UNREADABLE),
        ("library.publish_report", "succeeded"): 1,
        ("library.note_failure", "cancelled"): 1,
        ("pgjobs.flow", "abandoned"): 1,
    }


@PATIENT
@pytest.mark.usefixtures("done")
def test_nobody_comes_too_early_and_nobody_comes_twice(database: Database) -> None:
    [(links, early)] = database.query(
        "SELECT count(*), count(*) FILTER (WHERE j.claimed_at < needed.finished_at) FROM pgjobs_link AS l "
        "JOIN pgjobs_job AS j ON j.id = l.job_id JOIN pgjobs_job AS needed ON needed.id = l.parent_id "
        "WHERE j.name LIKE 'library.%'"
    )
    [(packages,)] = database.query("SELECT count(*) FROM library_package")
    assert (links, early) == (2 * (FILES + packages + 1), 0)
    tries = database.query(
        "SELECT DISTINCT name, attempt FROM pgjobs_job WHERE name IN ('library.sum_package', 'library.publish_report')"
    )
    assert sorted(tries) == [("library.publish_report", 1), ("library.sum_package", 1)]


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
    written = database.inside(
        """
from django_pgjobs.models import Job
from example_project.indexer.jobs import index_file, store_totals, sum_package
from example_project.indexer.models import Edition, Module
from example_project.indexer.totals import add_up
edition, approved = Edition.objects.all()  # the newest first
answer, problem = [approved.totals], edition.problem
for path in Module.objects.filter(edition=edition, problem="").values_list("path", flat=True)[:20]:
    index_file(path, edition.pk)
nodes = Job.objects.filter(parent_id=edition.flow, name=sum_package.name)
sums = [sum_package(**node.payload["kwargs"]) for node in nodes]
for _ in range(2):
    store_totals(edition.pk, add_up(sums))
    edition.refresh_from_db()
    answer += [edition.totals]
Edition.objects.filter(pk=edition.pk).update(totals=None, problem=problem)
"""
    )
    assert written == [written[0]] * 3


@PATIENT
@pytest.mark.usefixtures("done")
def test_an_older_edition_writes_nothing_over_a_newer_one(database: Database) -> None:
    answer = database.inside(
        """
from django.db import transaction
from django_pgjobs import Cancel
from example_project.indexer.indexing import start_edition
from example_project.indexer.jobs import index_file, store_totals, sum_package
from example_project.indexer.sources import source_files
from example_project.indexer.totals import add_up
answer = []
with transaction.atomic():
    paths = source_files(20)
    old, new = start_edition(paths), start_edition(paths)
    index_file(paths[-1], new.pk)
    late = [index_file.bind(paths[-1], old.pk), sum_package.bind("x", old.pk, 1)]
    late.append(store_totals.bind(old.pk, add_up([])))
    for call in late:
        try:
            with transaction.atomic():
                call.definition(*call.args)
        except Cancel as error:
            answer.append(str(error))
    transaction.set_rollback(True)
"""
    )
    assert answer == ["a newer edition has read this file", "there is a newer edition", "there is a newer edition"]


@PATIENT
@pytest.mark.usefixtures("done")
def test_a_newer_edition_cancels_the_flow_of_an_older_one(database: Database) -> None:
    nodes, old, new, totals, counted = database.inside(
        """
from collections import Counter
from django.db import transaction
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs
from example_project.indexer.indexing import start_edition
from example_project.indexer.jobs import approval
from example_project.indexer.sources import source_files
from example_project.indexer.totals import direct
with transaction.atomic():
    paths = source_files(20)
    old = start_edition(paths)
    run_jobs(limit=7)
    new = start_edition(paths)
    run_jobs()
    approval.send(new.pk, payload={"approved": True})
    run_jobs()
    new.refresh_from_db()
    outcomes = Job.objects.filter(parent_id=old.flow).values_list("outcome", "cancel_reason")
    answer = [sorted(map(list, Counter(outcomes).items())), [old.job().outcome, old.job().cancel_reason]]
    answer += [new.job().error, new.totals, list(direct(paths))[-1]]
    transaction.set_rollback(True)
"""
    )
    assert nodes[0][0] == ["cancelled", "a newer edition starts"]
    assert nodes[1] == [["succeeded", ""], 7]
    assert old == ["cancelled", "a newer edition starts"]
    assert re.fullmatch(r"3 of \d+ members did not succeed\.", new)
    assert totals == counted


@PATIENT
@pytest.mark.usefixtures("done")
def test_an_edition_that_lacks_a_file_gets_a_note_and_after_retries_its_report(database: Database) -> None:
    before, page, after = database.inside(
        """
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import Client
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs
from example_project.demo import judge
from example_project.indexer.indexing import start_edition
from example_project.indexer.jobs import approval, note_failure, publish_report
from example_project.indexer.sources import source_files
settings.ALLOWED_HOSTS = ["testserver"]

def outcome(definition):
    return nodes.filter(name=definition.name).last().outcome

with transaction.atomic():
    paths = source_files(20)
    edition = start_edition(paths)
    nodes = Job.objects.filter(parent_id=edition.flow)
    file, package = nodes.get(description="__future__.py"), nodes.get(description="(modules)")
    file.cancel(by="ann")
    run_jobs()
    edition.refresh_from_db()
    answer = [[edition.problem, outcome(publish_report), outcome(note_failure), judge(edition)]]
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ann"))
    answer.append(client.get("/").content.decode())
    file.refresh_from_db()
    file.retry(by="ann")
    run_jobs()
    package.refresh_from_db()
    package.retry(by="ann")
    run_jobs()
    approval.send(edition.pk, payload={"approved": True}, by="ann")
    run_jobs()
    note_failure(edition.pk)
    edition.refresh_from_db()
    answer.append([edition.problem, outcome(publish_report), edition.totals["files"], judge(edition)])
    transaction.set_rollback(True)
"""
    )
    assert before[0].startswith("(modules): ")
    assert "files have been read or given up" in before[0]
    assert before[1:] == ["cancelled", "succeeded", False]
    assert "not published: (modules): " in page
    assert "Read everything again" in page
    assert after == ["", "succeeded", 20, True]


@PATIENT
@pytest.mark.usefixtures("done")
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ('{"approved": False, "reason": "odd figures"}', "Abandon: refused: odd figures"),
        ('{"approved": False}', "Abandon: refused: no reason was given"),
        (None, "WaitTimedOut: library.approval:N was not sent in time."),
        ("cancel", "the report was cancelled"),
    ],
)
def test_a_report_that_nobody_approves_is_undone_and_the_page_shows_the_one_before(
    database: Database, sent: str | None, why: str
) -> None:
    before, after, undone, page = database.inside(
        f"""
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from django.test import Client
from django_pgjobs.models import Memo
from django_pgjobs.testing import run_job, run_jobs
from example_project.indexer.indexing import report_of, start_edition, waits_for_approval
from example_project.indexer.jobs import approval
from example_project.indexer.models import Edition
from example_project.indexer.sources import source_files
settings.ALLOWED_HOSTS = ["testserver"]

def facts():
    edition.refresh_from_db()
    return [Edition.on_page().pk == edition.pk, edition.totals is not None, waits_for_approval(edition)]

with transaction.atomic():
    edition = start_edition(source_files(20))
    run_jobs()
    answer = [facts()]
    report = report_of(edition)
    if {sent!r} == "cancel":
        report.cancel(by="ann")
    elif {sent!r} is None:
        Memo.objects.filter(job=report, kind="event").update(wake_at=Now())
        run_job(report)
    else:
        approval.send(edition.pk, payload={sent if sent != "cancel" else None})
    run_jobs()
    answer.append([*facts(), edition.approved_at, edition.problem.replace(f":{{edition.pk}}", ":N")])
    answer.append(list(report.compensations.order_by("pk").values_list("name", "outcome")))
    answer.append(Client().get("/").content.decode())
    transaction.set_rollback(True)
"""
    )
    assert before == [True, True, True]
    prefix = "" if sent == "cancel" else "library.publish_report: "
    assert after == [False, False, False, None, prefix + why]
    names = ["pgjobs.undo", "library.put_on_page.undo", "library.store_totals.undo"]
    assert undone == [[name, "succeeded"] for name in names]
    assert "Report of edition 1<" in page


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
    assert refusal == "edition N is being read, or waits for approval"


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
            command("--limit", "5", "--port", str(port)),
            env=empty.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with demo:
            try:
                site = served_by(demo)
                assert site.port > port
                with urllib.request.urlopen(f"{site.url}/") as page:
                    assert page.status == 200
                worker = int(children(demo.pid)[0])
                demo.send_signal(signal.SIGINT)
                assert demo.wait(patience(60)) == 0
                assert not Path(f"/proc/{worker}").exists()
            finally:
                demo.terminate()


@PATIENT
def test_a_demo_that_is_killed_leaves_no_worker(empty: Database, tmp_path: Path) -> None:
    environment = {**empty.environment, "TMPDIR": str(tmp_path)}  # for the log, which nobody deletes then
    with subprocess.Popen(
        command("--limit", "5"), env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as demo:
        try:
            wait_until(empty.has_worker, 60, "a worker runs")
            worker = Path(f"/proc/{children(demo.pid)[0]}")
        finally:
            demo.kill()
    wait_until(lambda: not worker.exists(), 60, "the worker has ended")


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
