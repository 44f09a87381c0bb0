"""The logger that every line of ours goes through."""

from __future__ import annotations

import logging
import shlex

import pytest

from django_pgjobs import logs
from django_pgjobs.logs import Facts, facts, facts_of_attempt, listed, safe_logger
from django_pgjobs.worker.supervisor.logs import _JobFormatter

HOSTILE = [
    "a\n2026-01-01 00:00:00,000 CRITICAL forged",
    "a\x1b[2Kb",
    "a\u2028b",
    "a\rb",
    "\u202egnp.exe",
    "a\0b",
    "x job=7 outcome=succeeded",
    '" job=7 "',
    "a\\",
    'a\\" job=7 "',
    "a=b",
    "a,b",
    "a:",
    "",
]


def line_of(caplog: pytest.LogCaptureFixture, words: str, *args: object) -> str:
    with caplog.at_level(logging.WARNING, "django_pgjobs.test"):
        safe_logger("django_pgjobs.test").warning(words, *args)
    return caplog.records[-1].getMessage()


def keys_in(line: str) -> list[str]:
    """The keys that a reader finds who knows quotes, as a shell or logfmt does."""
    return [word.partition("=")[0] for word in shlex.split(line) if "=" in word]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_rows_text_forges_neither_a_line_nor_a_fact(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """P15: whoever may write rows chooses a job's name; what a terminal would obey is written as its number."""
    line = line_of(caplog, "job parked name=%s job=%d: why", text, 3)
    assert line.isprintable()
    assert keys_in(line) == ["name", "job"]
    assert line.startswith('job parked name="')
    assert line.endswith('" job=3: why')


@pytest.mark.parametrize("text", HOSTILE)
def test_the_facts_of_an_attempt_are_as_harmless(text: str, caplog: pytest.LogCaptureFixture) -> None:
    about = facts_of_attempt(text, 12, 1, 5, "c1a1", text)
    line = line_of(caplog, "START %srun %s run_at=%s", "", about, "2026-03-01T07:00:00.000+00:00")
    assert line.isprintable()
    assert keys_in(line) == ["name", "job", "attempt", "claim", "queue", "run_at"]
    assert " job=12 attempt=1/5 claim=c1a1 queue=" in line


@pytest.mark.parametrize(
    "text", ["shop.charge", "mail:urgent", "größe", "b1:x-2", "2026-03-01T07:00:00+00:00", "a/b@c"]
)
def test_what_cannot_be_mistaken_stays_as_it_is(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert line_of(caplog, "x name=%s", text) == f"x name={text}"


def test_free_text_and_what_is_no_text_stay_in_their_line(caplog: pytest.LogCaptureFixture) -> None:
    """An exception's message is a row's text as well."""
    assert line_of(caplog, "x job=%d: %s", 1, ValueError("no\nCRITICAL forged")) == r"x job=1: no\nCRITICAL forged"
    assert line_of(caplog, "x %.1f s 100%% name=%s job=%s", 1.5, "a b", None) == 'x 1.5 s 100% name="a b" job=None'


def test_no_text_makes_a_line_long(caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(caplog, "x name=%s job=%d: %s", "n" * 10_000_000, 7, "w" * 10_000_000)
    assert line.startswith(f'x name="{"n" * logs.VALUE_LIMIT}…" job=7: www')
    assert len(line) < logs.VALUE_LIMIT + logs.TEXT_LIMIT + 100


def test_names_are_one_value() -> None:
    assert listed(["mail", "a b", "c,d"]) == '"a b","c,d",mail'
    assert listed([]) == '""'
    assert listed(str(number) for number in range(100)).count(",") == logs.NAMED
    assert facts("queue=%s", listed(["b", "a"])) == "queue=a,b"
    assert isinstance(facts("queue=%s", "x"), Facts)


def test_a_refused_record_stays_in_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.write_to_stderr(logging.ERROR, "job parked name=%s: %s", ("a\nb", "c\nCRITICAL forged"), ValueError("no\nway"))
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert r"a\nb: c\nCRITICAL forged" in written


def test_the_job_behind_a_line_of_a_job_is_as_harmless() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "sent", (), None)
    record.__dict__.update(job=7, attempt=1, queue="a\nb job=8")
    assert _JobFormatter("%(message)s").format(record) == r'sent job=7 attempt=1 queue="a\nb job=8"'
