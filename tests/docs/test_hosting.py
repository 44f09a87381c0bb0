"""What pages tell operators to write: configuration that parses, commands, metrics and figures that are true."""

from __future__ import annotations

import configparser
import io
import json
import math
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import yaml
from django.apps import apps
from django.core.management import call_command, get_commands, load_command_class
from django.db import connection

from django_pgjobs.conf import get_conf
from django_pgjobs.embedded.server import find_binaries
from django_pgjobs.metrics.families import FLEET, TOTALS, WORKER
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.testing import run_jobs
from tests.docs.fresh_project import commands as typed
from tests.docs.pages import DOCS, ROOT, Block, blocks, pages
from tests.jobs import fails, succeeds
from tests.plugins.shell import pgjobs

GRACE = 15
"""Seconds that a worker needs at most after its drain."""

BLOCKS = [block for page in pages() for block in blocks(page)]
CONFIGURATION = [block for block in BLOCKS if block.language in ("yaml", "toml", "ini")]
METRICS = {sample: metric for metric in (*WORKER, *FLEET, *TOTALS) for sample in metric.samples()}


def parsed(block: Block) -> list[Any]:
    """Return the documents of a block of YAML, TOML or INI."""
    if block.language == "yaml":
        return list(yaml.safe_load_all(block.text))
    if block.language == "toml":
        return [tomllib.loads(block.text)]
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_file(io.StringIO(block.text))
    return [{name: dict(section) for name, section in parser.items()}]


def values(document: Any) -> Iterator[Any]:
    """Yield every value of a document, lists as a whole and then their items."""
    yield document
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from values(each)


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words behind each ``manage.py`` of a block."""
    if block.language in ("yaml", "toml", "ini"):
        for value in (value for document in parsed(block) for value in values(document)):
            words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
            if "manage.py" in words[:-1]:
                yield words[words.index("manage.py") + 1 :]
    elif block.language in ("console", "text", "dockerfile"):
        for line in block.text.replace("\\\n", " ").splitlines():
            _, found, rest = line.partition("manage.py ")
            if found and (line.startswith("$ ") or not re.search(r"^\$ ", block.text, re.MULTILINE)):
                yield shlex.split(re.split(r" [|>&](?: |$)| #", rest)[0])


COMMANDS = [(block.where, words) for block in BLOCKS for words in commands(block)]

TABLES = [
    (f"{block.where} {command}", command.split("manage.py ")[1].split(), line.split())
    for block in BLOCKS
    if block.language == "text"
    for command, printed in typed(block.text)
    for line in printed.splitlines()
    if len(line.split()) > 1 and line == line.upper()
]
"""Tables that pages show and no test prints again, since they are of a fleet: place, words of the command, columns."""


@pytest.mark.parametrize("block", CONFIGURATION, ids=lambda block: block.where)
def test_a_block_of_configuration_parses_and_says_something(block: Block) -> None:
    assert all(parsed(block))


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else None)
def test_a_command_of_a_block_is_accepted_by_its_own_parser(where: str, words: list[str]) -> None:
    known = get_commands()
    assert words[0] in known, where
    parser = load_command_class(known[words[0]], words[0]).create_parser("manage.py", words[0])
    parser.parse_args(words[1:])  # or it raises


@pytest.mark.django_db
@pytest.mark.parametrize(("words", "columns"), [table[1:] for table in TABLES], ids=[table[0] for table in TABLES])
def test_a_table_of_a_fleet_has_the_columns_that_are_printed(words: list[str], columns: list[str]) -> None:
    succeeds.register()
    _, printed, _ = pgjobs(*words[1:])
    assert columns in [line.split() for line in printed.splitlines()]


def test_commands_are_found_in_every_kind_of_block() -> None:
    pages_with = {where.partition(":")[0] for where, _ in COMMANDS}
    assert {"docs/how-to/hosting.md", "docs/how-to/autoscaling.md", "docs/how-to/pause.md"} <= pages_with
    found = [words for where, words in COMMANDS if "hosting" in where]
    assert found.count(["migrate", "--noinput"]) == 4  # Compose, Kubernetes, Heroku, Fly
    assert sum(words[0] == "runjobs" for words in found) == 6  # Docker and systemd too


def graces() -> dict[str, int]:
    """Return file → the seconds that the example waits after the signal."""
    page = DOCS / "how-to" / "hosting.md"
    text = "\n".join(block.text for block in blocks(page))
    patterns = {
        "Docker": r"--stop-timeout (\d+)",
        "Compose": r"stop_grace_period: (\d+)s",
        "Kubernetes": r"terminationGracePeriodSeconds: (\d+)",
        "Fly": r"kill_timeout = (\d+)",
        "systemd": r"TimeoutStopSec=(\d+)",
    }
    return {name: int(seconds) for name, pattern in patterns.items() for seconds in re.findall(pattern, text)}


def test_every_example_waits_for_as_long_as_a_drain_takes() -> None:
    waits = graces()
    assert len(waits) == 5
    assert set(waits.values()) == {get_conf().drain_seconds + GRACE}


def test_where_the_platform_fixes_the_time_the_drain_fits_in() -> None:
    [drain] = re.findall(r'"DRAIN_SECONDS": (\d+)', "".join(b.text for b in blocks(DOCS / "how-to" / "hosting.md")))
    assert int(drain) + GRACE == 30


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_metrics_that_a_page_names_are_exported(page: Any) -> None:
    named = set(re.findall(r"\bpgjobs_(?:fleet_\w+|\w+_(?:total|seconds|ratio))\b", page.read_text(encoding="utf-8")))
    assert named <= set(METRICS) | {metric.name for metric in METRICS.values()}


def queries() -> list[str]:
    """Return the queries of PromQL on the page about autoscaling."""
    found = [value for block in blocks(DOCS / "how-to" / "autoscaling.md") if block.language == "yaml"
             for document in parsed(block) for value in values(document) if isinstance(value, str)]  # fmt: skip
    return [text for text in found if re.search(r"\bpgjobs_fleet_\w+[{)]", text)]


def test_autoscalers_select_and_group_by_labels_that_the_metrics_have() -> None:
    assert len(queries()) == 4
    for query in queries():
        labels: set[str] = set()
        for name, selected in re.findall(r"\b(pgjobs_\w+)\{([^}]*)\}", query):
            chosen = re.findall(r"(\w+)(?:=~?)\"([^\"]*)\"", selected)
            labels |= set(METRICS[name].labels)
            assert {label for label, _ in chosen} <= labels
            states = {state for label, value in chosen if label == "state" for state in value.split("|")}
            assert states <= set(Job.State.values)
        assert {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")} <= labels
        assert re.search(r"\bmax\b", query), "every process exports the same"


@pytest.mark.django_db
def test_the_query_that_scales_from_zero_counts_what_is_due_up_to_its_bound() -> None:
    found = [value["query"] for block in blocks(DOCS / "how-to" / "autoscaling.md") if block.language == "yaml"
             for document in parsed(block) for value in values(document)
             if isinstance(value, dict) and "targetQueryValue" in value]  # fmt: skip
    [query] = found

    def counted() -> int:
        with connection.cursor() as cursor:
            cursor.execute(query)
            [row] = cursor.fetchall()
        return int(row[0])

    succeeds.using(queue="mail", delay=60).register()
    succeeds.using(queue="other").register()
    assert counted() == 0
    succeeds.using(queue="mail").register_many((n,) for n in range(3))
    assert counted() == 3
    Job.objects.filter(queue="mail").cancel()
    assert counted() == 0
    succeeds.using(queue="mail").register_many((n,) for n in range(100))
    assert counted() == 80


def test_the_table_of_sizes_follows_its_formula() -> None:
    text = (DOCS / "how-to" / "size.md").read_text(encoding="utf-8")
    number = r"([\d,.]+)"
    cells = [number, number, number, number, r"(\d+) of (\d+) × (\d+)", number, number, number]
    rows = re.findall(r"^\| " + r" \| ".join(cells) + r" \|$", text, re.MULTILINE)
    assert len(rows) >= 4
    for row in rows:
        a_day, seconds, a_second, *whole, disk, wal = (float(cell.replace(",", "")) for cell in row)
        slots, workers, processes, threads, connections = whole
        assert a_second == round(a_day / 86_400 * 5, 1)
        assert slots == math.ceil(a_day / 86_400 * 5 * seconds * 1.5)
        assert workers == max(2, math.ceil(slots / (processes * threads)))
        assert connections == workers * (processes * threads + 8)
        assert disk == pytest.approx(a_day * 1024 / 1e9, abs=0.05)
        assert wal == pytest.approx(a_day * 2048 / 1e9, abs=0.05)


@pytest.mark.django_db
def test_the_figures_that_a_script_reads_are_printed() -> None:
    page = (DOCS / "how-to" / "autoscaling.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", page.rpartition("## Without Kubernetes")[2].partition("```")[0])
    succeeds.using(queue="mail").register()
    status, printed, _ = pgjobs("stats", "--queue", "mail", "--format", "json")
    assert status == 0
    [queue] = json.loads(printed)["queues"]
    assert named == ["ready", "running", "oldest_ready_seconds", "queues"]
    assert set(named) - {"queues"} <= set(queue)


def kept_on_a_copy() -> tuple[set[str], set[str], str]:
    """Return the tables that the page empties, those that it keeps, and its statement."""
    page = DOCS / "how-to" / "backup.md"
    [statement] = [block.text for block in blocks(page) if block.language == "sql"]
    kept = re.findall(r"`(pgjobs_\w+)`", page.read_text(encoding="utf-8").partition("Pause each schedule")[0])
    return set(re.findall(r"pgjobs_\w+", statement)), set(kept) - {"pgjobs_job"}, statement


def test_a_copy_of_production_has_each_table_either_emptied_or_kept() -> None:
    emptied, kept, _ = kept_on_a_copy()
    assert not emptied & kept
    assert emptied | kept == {model._meta.db_table for model in apps.get_app_config("pgjobs").get_models()}


@pytest.mark.django_db(transaction=True)
def test_a_copy_of_production_that_was_emptied_runs_nothing_old_and_all_that_is_new() -> None:
    succeeds.register(1)
    fails.register()
    nightly = CronEntry(
        name="nightly", job_name=succeeds.name, declared_expression="0 0 * * *", declared_zone="UTC",
        declared_payload={"args": [], "kwargs": {}}, declared_options={},
    )  # fmt: skip
    CronEntry.objects.bulk_create([nightly])
    assert run_jobs(limit=1).ran
    emptied, _, statement = kept_on_a_copy()
    with connection.cursor() as cursor:
        cursor.execute(statement)
        for table in emptied:
            cursor.execute(f"SELECT count(*) FROM {table}")
            assert cursor.fetchone() == (0,), table
    CronEntry.objects.get(name="nightly").pause(by="ann", reason="a copy of production")
    job = succeeds.register(2)
    call_command("runjobs", until_idle=True, processes=1)
    assert job.value(timeout=0) == 2
    assert list(Job.objects.values_list("pk", flat=True)) == [job.pk]


@pytest.mark.django_db(transaction=True)
def test_the_dump_for_staging_has_the_tables_and_no_job(tmp_path: Path) -> None:
    """By the page's own two commands, on this server."""
    succeeds.register_many((n,) for n in range(3))
    here = connection.settings_dict
    copy = f"{here['NAME']}_staging"
    base = f"postgres://{here['USER']}:{quote(here['PASSWORD'])}@{here['HOST']}:{here['PORT']}"
    page = "".join(block.text for block in blocks(DOCS / "how-to" / "backup.md") if block.language == "console")
    with psycopg.connect(f"{base}/postgres", autocommit=True) as server:
        programs = find_binaries(server.info.server_version // 10_000)
        server.execute(f'CREATE DATABASE "{copy}"')
        try:
            for name in ("pg_dump", "pg_restore"):
                [line] = re.findall(rf"^\$ {name} (.*)$", page, re.MULTILINE)
                given = re.sub(r" shop$", f" {base}/{here['NAME']}", line).replace("=staging ", f"={base}/{copy} ")
                subprocess.run([programs / name, *shlex.split(given)], check=True, cwd=tmp_path)
            with psycopg.connect(f"{base}/{copy}") as staging:
                assert staging.execute("SELECT count(*) FROM pgjobs_job AS j WHERE j.state = 'ready'").fetchone() == (
                    0,
                )
                assert staging.execute("SELECT count(*) FROM django_migrations WHERE app = 'pgjobs'").fetchone() != (0,)
                assert staging.execute("SELECT nextval('pgjobs_job_id_seq')").fetchone() == (1,)
        finally:
            server.execute(f'DROP DATABASE "{copy}" WITH (FORCE)')
