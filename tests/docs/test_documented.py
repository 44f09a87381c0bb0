"""Everything public is documented: settings, options, signals, errors, checks, states, statements, frames, names."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import pytest
from django.apps import apps
from django.db.models import Model

import django_pgjobs
from django_pgjobs import jobs, sql, states
from django_pgjobs.conf import RULES, JobBounds
from django_pgjobs.context import JobContext
from django_pgjobs.definition.options import JOB_CHECKS, REGISTER_CHECKS
from django_pgjobs.durable import Durable
from django_pgjobs.maintenance.duties import DutyProgress, TimedDuty, duties, upkeep
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Job, Steerable
from django_pgjobs.states import CancelMode
from django_pgjobs.store.finalising import Author
from django_pgjobs.tasks.settings import KEYS
from django_pgjobs.values.setting_rules import part_rules
from django_pgjobs.worker.shared.channel_messages import FromExecutor, ToExecutor
from django_pgjobs.worker.shared.connection import WAYS
from tests.docs.pages import DOCS, ROOT, generated, pages

PACKAGE = Path(django_pgjobs.__file__).parent
made = generated()
from_code, from_settings = made.from_code, made.from_settings

PARTS = sorted(made.PARTS)
"""What can be generated into a page."""


SUBCOMMAND_PARTS = {
    "list": ["list_options"],
    "show": ["show_options"],
    "why": ["show_options"],
    "stats": ["stats_options"],
    "check": ["check_options"],
    "doctor": ["doctor_options"],
    "release": ["operator_options"],
    "unblock": ["operator_options"],
    "reschedule": ["operator_options", "reschedule_options"],
    "send-event": ["send_event_options"],
    "pause": ["pause_options"],
    "resume": ["pause_options"],
    "limit": ["limit_options"],
}
"""Subcommand → what is generated of its options."""


def read(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", PARTS)
def test_every_generated_part_stands_on_a_page_and_says_something(part):
    shown = re.compile(rf"^```{{pgjobs}} {part}(?: .*)?$", re.MULTILINE)
    assert any(shown.search(page.read_text(encoding="utf-8")) for page in pages())
    assert len(made.PARTS[part]()) > 60


def test_every_setting_has_a_heading_a_text_and_its_default():
    text = from_settings.settings()
    assert [name for name in RULES if f"\n## {name}\n" not in text] == []
    assert all(len(part.strip()) > 40 for part in text.split("\n## ")[1:])


def test_every_setting_is_named_in_words_it_exists_in():
    """A page that names a setting names one there is."""
    known = {*RULES, *KEYS}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`([A-Z][A-Z_]+_(?:SECONDS|BYTES|CHARS|DAYS|CEILING|ATTEMPTS|BACKOFF|SLOTS))`", text))
        assert named <= known, page.relative_to(ROOT)


@pytest.mark.parametrize("command", ["runjobs"])
def test_every_option_of_a_command_is_documented(command):
    options = from_settings.command_options(command)
    assert all(text for _, text in options)
    assert [option for option, _ in options if f"`{option}`" not in from_settings.runjobs_options()] == []


@pytest.mark.parametrize("subcommand", ["cancel", "retry", "abandon"])
def test_every_option_of_an_operators_subcommand_is_documented(subcommand):
    options = from_settings.subcommand_options(subcommand)
    assert all(text for _, text in options)
    assert [option for option, _ in options if f"`{option}`" not in from_settings.operator_options()] == []


def test_every_option_of_prune_is_documented():
    options = from_settings.subcommand_options("prune")
    assert all(text for _, text in options)
    assert [option for option, _ in options if f"`{option}`" not in from_settings.prune_options()] == []


@pytest.mark.parametrize(("subcommand", "parts"), SUBCOMMAND_PARTS.items())
def test_every_option_of_a_subcommand_is_documented(subcommand, parts):
    options = from_settings.subcommand_options(subcommand)
    text = "".join(made.PARTS[part]() for part in parts)
    assert all(text for _, text in options)
    assert [option for option, _ in options if f"`{option}`" not in text] == []


def test_every_finding_of_the_doctor_is_documented():
    """Those of checks, of ``pgjobs check`` and of Celery's words have tables of their own."""
    found = {
        id
        for path in (PACKAGE / "doctor").glob("*.py")
        for id in re.findall(r"Finding\(\s*\"(\w+)\"", path.read_text(encoding="utf-8"))
    } - {"database"}
    assert len(found) > 20
    assert [id for id in sorted(found) if f"`{id}`" not in read("reference/commands")] == []


def test_every_subcommand_has_a_heading():
    assert [
        name for name in from_settings.subcommands() if f"## pgjobs {name}\n" not in read("reference/commands")
    ] == []


def test_options_named_on_any_page_exist():
    options = [*from_settings.command_options("runjobs")]
    options += [option for name in from_settings.subcommands() for option in from_settings.subcommand_options(name)]
    known = {word for option, _ in options for word in re.findall(r"--[\w-]+", option)}
    foreign = {"--init", "--stop-timeout", "--settings", "--noinput", "--username", "--email", "--help"}
    foreign |= {"--only", "--no-peers", "--scale", "--publish", "--parallel", "--deploy"}  # make bench, manage.py
    foreign |= {"--bind", "--no-cache-dir", "--detach", "--ds"}  # gunicorn, pip, docker compose, pytest-django
    foreign |= {"--exclude-table-data", "--file", "--no-owner", "--dbname", "--table"}  # pg_dump, pg_restore
    foreign |= {"--queue-name"}  # db_worker of django-tasks-db
    foreign |= {"--serve", "--data", "--major", "--clean"}  # django_pgjobs.embedded
    for page in pages():
        named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text(encoding="utf-8")))
        assert named <= known | foreign, page.relative_to(ROOT)


def test_every_option_of_job_and_using_is_documented():
    assert set(JOB_CHECKS) | set(REGISTER_CHECKS) == set(from_settings.OPTION_TEXTS)


def test_every_option_has_its_bounds_in_the_table_and_their_settings_exist():
    assert set(JOB_CHECKS) | set(REGISTER_CHECKS) == set(from_settings.OPTION_BOUNDS)
    for _takes, _default, settings in from_settings.OPTION_BOUNDS.values():
        for name in filter(None, settings.split(", ")):
            bound = re.fullmatch(r"BOUNDS\['(\w+)'\]", name)
            assert (bound[1] in part_rules(JobBounds)) if bound else (name in RULES), name


def test_every_signal_is_documented_with_where_it_is_sent():
    tree = ast.parse((PACKAGE / "signals.py").read_text(encoding="utf-8"))
    names = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]  # type: ignore[attr-defined]
    assert names
    page = read("reference/signals")
    assert [name for name in names if f"`{name}`" not in page or f"### {name}\n" not in from_code.signals()] == []


def test_every_error_is_in_the_tree_and_in_the_table():
    tree, table = from_code.error_tree(), from_code.errors()
    for kind in from_code.error_classes():
        assert kind.__name__ in tree
        assert f"`{kind.__name__}`" in table


def test_every_check_is_in_the_table_and_the_table_has_no_other():
    fronts = (PACKAGE / front / "checks.py" for front in ("celery_bridge", "tasks"))
    modules = (*(PACKAGE / "checks").glob("*.py"), *fronts)
    texts = "".join(path.read_text(encoding="utf-8") for path in modules)
    used = set(re.findall(r'"(pgjobs\.[EW]\d{3})"', texts))
    assert used == {id_ for id_, _ in from_code.check_rows()}


def test_checks_named_on_any_page_exist():
    known = {id_ for id_, _ in from_code.check_rows()}
    assert {id_ for page in pages() for id_ in re.findall(r"pgjobs\.[EW]\d{3}", page.read_text())} <= known


@pytest.mark.parametrize(
    "words",
    [states.JobState, states.Outcome, states.Hold, states.Ending, states.Cause, states.CancelMode, states.KeyScope],
)
def test_every_state_and_every_other_word_on_a_row_is_explained(words):
    page = read("reference/states")
    assert [word.value for word in words if f"`{word}`" not in page] == []


@pytest.mark.parametrize("name", sql.names())
def test_every_statement_is_documented_with_its_fence(name):
    section = from_code.sql_contracts().split(f"\n## {name}\n" if name != sql.names()[0] else f"## {name}\n", 1)[1]
    section = section.split("\n## ")[0]
    assert "**Fence**" in section
    body = [line for line in sql.source(name).splitlines() if not line.startswith("--")]
    assert "\n".join(["```text", *body, "```"]) in section  # with its comments, to be read


def test_every_statement_is_on_one_page_and_each_page_is_in_the_index():
    folder = DOCS / "reference" / "sql"
    modules = {
        path.stem: re.findall(r"^```\{pgjobs\} sql_contracts (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in folder.glob("*.md")
    }
    assert not modules.pop("index")
    assert set(re.findall(r"^(\w+)$", read("reference/sql/index"), re.MULTILINE)) == set(modules)
    shown = [module for [words] in modules.values() for module in words.split()]
    assert sorted(shown) == sorted(from_code.statements_by_module())


def test_every_frame_of_the_channel_is_on_the_page_of_the_protocol():
    messages = [*get_args(FromExecutor), *get_args(ToExecutor)]
    page = read("contributing/worker")
    assert len(messages) >= 16
    assert [message.tag for message in messages if f"`{message.tag}" not in page] == []


def test_every_public_name_is_on_the_page_of_public_names():
    page = read("reference/api")
    names = re.search(r"\| `django_pgjobs` \| (.*) \|", page)
    assert names is not None
    assert set(re.findall(r"`(\w+)`", names[1])) == set(django_pgjobs.__all__)


IMPORT = re.compile(r"^(?:>>> )?from (django_pgjobs[\w.]*) import ([\w, ]+)", re.MULTILINE)


def test_what_pages_import_is_public():
    """What is not on the page of public names is internal, so no page tells users to use it."""
    rows = dict(re.findall(r"^\| `(django_pgjobs[\w.]*)` \| (.+) \|$", read("reference/api"), re.MULTILINE))
    rows["django_pgjobs"] += " ".join(f"`{module.rpartition('.')[2]}`" for module in rows)
    whole = {"django_pgjobs.exceptions", "django_pgjobs.signals"}
    for page in pages():
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
            hidden = [name for name in names.strip().split(", ") if f"`{name}`" not in rows.get(module, "")]
            assert module in whole or not hidden, page


@pytest.mark.parametrize("kind", [jobs.JobDefinition, jobs.BoundOptions, jobs.BoundJob])
def test_every_method_of_a_definition_is_on_the_page_of_public_names(kind):
    page = read("reference/api")
    listed = re.search(rf"autoclass:: django_pgjobs\.jobs\.{kind.__name__}\(\)\n +:members: (.+)", page)
    assert listed is not None
    single = re.findall(rf"automethod:: django_pgjobs\.jobs\.{kind.__name__}\.(\w+)", page)
    methods = {name for name, found in vars(kind).items() if name[0].islower() and inspect.isfunction(found)}
    assert methods - {*listed[1].split(", "), *single} == set()


def own(kind: type, *, without: type = object) -> set[str]:
    """What ``dir`` shows of a class beyond another."""
    return {name for name in dir(kind) if not name.startswith("_")} - set(dir(without))


def listed(text: str, *, after: str) -> set[str]:
    """The names in double backquotes of the paragraph that begins so."""
    return set(re.findall(r"``(\w+)``", text.partition(after)[2].partition("\n\n")[0]))


def test_dir_of_a_definition_shows_what_the_page_lists() -> None:
    page = read("reference/api")
    members = re.search(r"JobDefinition\(\)\n +:members: (.+)", page)
    assert members is not None
    methods = {*members[1].split(", "), *re.findall(r"JobDefinition\.(\w+)$", page, re.MULTILINE)}
    definition: Any = jobs.job(name="documented.dir")(page_of_nothing)
    shown = {name for name in dir(definition) if not name.startswith("_")}
    assert shown == methods | listed(page, after="Its attributes are ")


def page_of_nothing() -> None: ...


def test_dir_of_a_job_shows_what_the_pages_list() -> None:
    methods = re.search(r"Steerable\(\)\n +:members: (.+)", read("reference/api"))
    assert methods is not None
    text = read("reference/models").partition("py:class:: django_pgjobs.models.Job")[2]
    documented = {*methods[1].split(", "), *from_code.FIELD_TEXTS["Job"], *listed(text, after="The model of jobs.")}
    djangos = {"DoesNotExist", "MultipleObjectsReturned", "objects", "State", "Meta", "parent_id", "target_id", "fresh"}
    shown = {name for name in own(Job, without=Model) if not re.match("get_(next|previous)_by_|get_.*_display$", name)}
    assert shown - djangos == documented


def test_dir_of_the_context_shows_what_the_page_lists() -> None:
    page = read("reference/api")
    assert re.search(r"JobContext\(\)\n +:members:\n", page), "all of it, by its docstrings"
    of_durable = re.search(r"Durable\(\)\n +:members: (.+)", page)
    assert of_durable is not None
    assert own(Durable) == set(of_durable[1].split(", "))
    attributes = listed(inspect.getdoc(JobContext) or "", after="first argument")
    for name in own(JobContext, without=Durable) - attributes - {"database", "error", "headers", "schema", "started"}:
        assert getattr(JobContext, name).__doc__, name


def test_every_method_of_a_job_is_public():
    methods = {name for name in vars(Steerable) if name[0].islower()}
    listed = re.search(r"Steerable\(\)\n +:members: (.+)", read("reference/api"))
    assert listed is not None
    assert set(listed[1].split(", ")) == methods


def test_every_mode_of_cancelling_is_explained():
    assert [mode for mode in CancelMode if mode not in from_code.FIELD_TEXTS["Job"]["cancel_mode"]] == []


def test_every_log_line_with_a_cure_is_one_that_the_code_writes():
    """A line quoted for the night is one that the code can write."""
    lines = [re.sub(r"%[-.\d]*[a-z]", "…", line) for _, _, line, _ in from_code.log_calls()]
    cures = read("reference/logs").partition("## What to do about a line")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", cures, re.MULTILINE)
    assert len(quoted) > 8
    for quote in quoted:
        pattern = re.escape(quote).replace("…", ".*").replace("3", "(?:3|…)")
        assert any(re.search(pattern, line) for line in lines), quote


def test_every_permission_is_documented():
    page = read("how-to/security")
    codes = [code for model in apps.get_app_config("pgjobs").get_models() for code, _ in model._meta.permissions]
    assert len(codes) > 6
    assert [code for code in codes if f"`pgjobs.{code}`" not in page] == []


def test_what_libpq_is_told_stands_on_the_page_of_connections():
    [options] = re.findall(r'"OPTIONS"\] = (\{[^}]*connect_timeout[^}]*\})', read("how-to/connections"))
    assert ast.literal_eval(options) == WAYS


def test_every_duty_stands_once_in_the_leaders_table_and_whose_it_is():
    """Each has one row: two would say different things before long."""
    leader = Leader(Author(UUID(int=1), "one"))
    progress = DutyProgress(leader, {})
    slow = upkeep(progress, lambda: pytest.fail("connected"))
    known = [*duties(progress, lambda rescued: None), *slow]
    whose = {
        duty.name: "the leader's" if duty in slow or (isinstance(duty, TimedDuty) and duty.leader) else "every worker's"
        for duty in known
        if duty is not leader
    }
    table = read("explanation/leader").partition("\nThe rule")[0]
    rows = re.findall(r"^\| `(\w+)`: .* \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!duty|---)", table, re.MULTILINE))
    assert sorted(rows) == sorted(whose.items())


def test_every_field_of_every_model_is_explained():
    fields = {
        model.__name__: {f.name for f in model._meta.local_concrete_fields} for model in from_code.model_classes()
    }
    assert fields == {model: set(texts) for model, texts in from_code.FIELD_TEXTS.items()}


def test_every_decision_is_in_the_index_and_has_its_parts():
    index = read("adr/index")
    found = sorted((DOCS / "adr").glob("0*.md"))
    assert len(found) >= 10
    for page in found:
        text = page.read_text(encoding="utf-8")
        assert f"({page.name})" in index
        assert text.startswith(f"# ADR-{page.name[:4]}: ")
        assert "**Status:**" in text
        assert "\n## Consequences\n" in text
        assert "\n## Rejected\n" in text


def test_files_of_the_repository_that_pages_name_exist():
    named = {
        (page, path)
        for page in pages()
        for path in re.findall(
            r"`((?:tests|benchmarks|django_pgjobs)/[\w/.-]+\.(?:py|sql|md))`", page.read_text(encoding="utf-8")
        )
    }
    assert [path for _, path in named if not (ROOT / path).exists()] == []


def test_the_modules_and_statements_that_the_walks_pass_exist():
    page = read("contributing/walks")
    steps = re.findall(r"^\d+\. `([a-z_.]+)`:", page, re.MULTILINE)
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    named = {name for name in re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)`", page) if name.partition(".")[0] in rooms}
    statements = re.findall(r"`([a-z_]+)\.sql`", page)
    assert len(steps) == len(re.findall(r"^\d+\. `", page, re.MULTILINE)) > 30
    assert [name for name in {*steps, *named} if find_spec(f"django_pgjobs.{name}") is None] == []
    assert len(statements) > 10
    assert set(statements) <= set(sql.names())


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_page_names_a_path_of_a_developers_machine():
    for page in pages():
        assert not re.search(r"(?<![\w/])/(?:home|root|work|Users)/", page.read_text(encoding="utf-8")), page


def test_the_badges_of_the_readme_say_what_the_package_declares():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    badges = {name: (first, last) for name, first, last in re.findall(r"!\[(\w+) ([\d.]+) to ([\d.]+)\]", text)}
    for name, prefix in (("Python", "Programming Language :: Python"), ("Django", "Framework :: Django")):
        versions = [
            item.removeprefix(f"{prefix} :: ") for item in declared if re.match(rf"{prefix} :: \d+\.\d+$", item)
        ]
        assert badges[name] == (versions[0], versions[-1])
    majors = re.findall(r"pg(\d+): PG_MAJOR", (ROOT / "tox.ini").read_text(encoding="utf-8"))
    assert badges["PostgreSQL"] == (majors[0], majors[-1])
    for first, last in badges.values():
        assert f"-{first}%20to%20{last}-" in text


def test_the_page_of_supported_versions_has_those_of_the_badges() -> None:
    rows = re.findall(r"^\| ?(\w*) \| ([\d.]+)(?: \(LTS\))? \| \w+ \d{4} \|$", read("reference/support"), re.MULTILINE)
    listed: dict[str, list[str]] = {}
    name = ""
    for what, version in rows:
        name = what or name
        listed.setdefault(name, []).append(version)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, first, last in re.findall(r"!\[(\w+) ([\d.]+) to ([\d.]+)\]", text):
        assert (listed[name][0], listed[name][-1]) == (first, last)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    assert [f"Programming Language :: Python :: {version}" for version in listed["Python"]] == [
        each for each in declared if re.match(r"Programming Language :: Python :: \d+\.\d+$", each)
    ]
    assert [f"Framework :: Django :: {version}" for version in listed["Django"]] == [
        each for each in declared if re.match(r"Framework :: Django :: \d+\.\d+$", each)
    ]
