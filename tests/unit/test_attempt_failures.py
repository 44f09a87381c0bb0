"""What is kept of an error: kind, message, the whole chain of causes, a traceback that begins in the job's code."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

import pytest
from django.test import override_settings
from django.utils.module_loading import import_string

from django_pgjobs.decisions import Failure
from django_pgjobs.exceptions import JobSuspended
from django_pgjobs.execution.failed_attempts import failure_of
from django_pgjobs.serialization import failures
from django_pgjobs.serialization.failures import LOG_LIMIT, Account, clean


def caught(raising: Any) -> BaseException:
    try:
        raising()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def plain() -> None:
    raise ValueError("no")


def from_another() -> None:
    try:
        plain()
    except ValueError as error:
        raise RuntimeError("because") from error


def while_handling() -> None:
    try:
        plain()
    except ValueError:
        raise KeyError("missing")  # noqa: B904


def from_none() -> None:
    try:
        plain()
    except ValueError:
        raise RuntimeError("alone") from None


class Equal(Exception):
    def __eq__(self, other: object) -> bool:
        raise SystemExit("compared")

    __hash__ = None  # type: ignore[assignment]


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("asked")


class Wrong(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Nested:
    class Deep(Exception):
        pass


def test_kind_and_message() -> None:
    """C27: builtins by their name alone, others qualified."""
    failure = failure_of(caught(plain))
    assert (failure.kind, failure.message, failure.chain) == ("ValueError", "no", (("ValueError", "no"),))
    assert failure_of(Nested.Deep()).kind == f"{__name__}.Nested.Deep"
    assert failure_of(KeyError("a")).message == "'a'"


@pytest.mark.parametrize(
    ("raising", "chain"),
    [
        (from_another, (("RuntimeError", "because"), ("ValueError", "no"))),
        (while_handling, (("KeyError", "'missing'"), ("ValueError", "no"))),
        (from_none, (("RuntimeError", "alone"),)),
    ],
)
def test_the_whole_chain_is_kept(raising: Any, chain: Any) -> None:
    """P27: ``raise A from B`` shows both."""
    failure = failure_of(caught(raising))
    assert failure.chain == chain
    assert failure.summary == " ← ".join(f"{kind}: {message}" for kind, message in chain)
    assert all(message in failure.traceback for _, message in chain)


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert failure_of(one).chain == (("ValueError", "one"), ("ValueError", "other"))


def test_a_long_chain_is_cut() -> None:
    error: BaseException = ValueError("first")
    for number in range(30):
        after = ValueError(str(number))
        after.__cause__, error = error, after
    assert len(failure_of(error).chain) == failures.CHAIN_LIMIT


def test_the_jobs_own_comparison_is_not_asked() -> None:
    first, second = Equal("first"), Equal("second")
    first.__cause__ = second
    assert [message for _, message in failure_of(first).chain] == ["first", "second"]


@pytest.mark.parametrize("error", [Mute(), Wrong()], ids=["mute", "wrong"])
def test_a_message_that_cannot_be_read(error: Exception) -> None:
    failure = failure_of(error)
    assert failure.message == "(its message cannot be read)"
    assert failure.traceback != ""


def test_a_traceback_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames remain, without the texts that are the job's own code."""
    error = caught(plain)

    def broken(*args: Any, **options: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(traceback, "TracebackException", broken)
    assert "in plain" in failure_of(error).traceback


def test_messages_are_bounded() -> None:
    assert len(failure_of(ValueError("x" * 5000)).message) == failures.MESSAGE_LIMIT


def test_the_summary_is_one_line() -> None:
    failure = failure_of(ValueError("one\n  two\r\nthree"))
    assert failure.message == "one\n  two\r\nthree"
    assert failure.summary == "ValueError: one two three"


@pytest.mark.parametrize(
    ("failure", "summary"),
    [
        (Failure("shop.Declined", "refused"), "Declined: refused"),
        (Failure("shop.Declined", ""), "Declined"),
        (Failure("", "ValueError: no"), "ValueError: no"),
        (Failure("", ""), ""),
    ],
)
def test_a_failure_without_a_chain(failure: Failure, summary: str) -> None:
    assert failure.summary == summary


def test_the_traceback_begins_in_the_jobs_code() -> None:
    def ours() -> None:
        plain()

    error = caught(ours)
    lines = failure_of(error).traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in caught" in lines[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "OUR_FILES", {__file__})
        assert "in caught" in failure_of(error).traceback, "all of it, where everything is ours"
    assert lines[-1] == "ValueError: no"


def test_the_file_of_a_wrapper_around_bodies_can_be_left_out_too() -> None:
    """T16, O6: a front that calls the job's function adds its own file; again makes no difference."""
    names: dict[str, Any] = {"plain": plain}
    exec(compile("def wrapper():\n    plain()", "a/front.py", "exec"), names)
    error = caught(names["wrapper"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "OUR_FILES", {__file__})
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # begins in the wrapper
        assert "front.py" in failure_of(error).traceback
        patch.setattr(failures, "OUR_FILES", set())
        for _ in range(2):
            failures.add_own_file("a/front.py")
        assert {"a/front.py"} == failures.OUR_FILES
        text = failure_of(error).traceback
    assert "front.py" not in text
    assert "in plain" in text


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (ValueError(), "builtins.ValueError"),
        (SystemExit(), "builtins.SystemExit"),
        (OSError(), "builtins.OSError"),
        (json.JSONDecodeError("no", "", 0), "json.decoder.JSONDecodeError"),
        (Mute(), f"{__name__}.Mute"),
    ],
    ids=repr,
)
def test_the_full_path_of_a_stored_kind_can_be_imported(error: BaseException, path: str) -> None:
    """§1.5, O6: stored kinds of builtins have no module, and ``import_string`` needs one."""
    assert failures.full_path(failure_of(error).kind) == path
    assert import_string(path) is type(error)
    assert failures.full_path(path) == path


def test_of_no_kind_there_is_no_path() -> None:
    """A lost attempt has no exception."""
    assert failures.full_path("") == ""


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    assert failure_of(ValueError("no")).traceback == "ValueError: no\n"


def test_a_group_shows_its_members() -> None:
    failure = failure_of(ExceptionGroup("many", [ValueError("a"), OSError("b")]))
    assert failure.message == "many (2 sub-exceptions)"
    assert "ValueError: a" in failure.traceback
    assert "OSError: b" in failure.traceback


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ExceptionGroup("one", [ValueError("a")]), "ValueError: a"),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "ValueError: a (and 1 more of this kind)"),
        (
            ExceptionGroup("nested", [ExceptionGroup("one", [KeyError("a")]), KeyError("b")]),
            "KeyError: 'a' (and 1 more",
        ),
        (BaseExceptionGroup("suspended", [JobSuspended(), ValueError("a")]), "ValueError: a"),
        (
            BaseExceptionGroup("only suspended", [JobSuspended()]),
            "BaseExceptionGroup: only suspended (1 sub-exception)",
        ),
        (ExceptionGroup("long", [ValueError("x" * 3000)] * 3), "x (and 2 more of this kind)"),
        (ExceptionGroup("wide", [ValueError("a")] * 3000), "ExceptionGroup: wide (3000 sub-exceptions)"),
        (ExceptionGroup("kinds", [ValueError("a"), TypeError("b")]), "ExceptionGroup: kinds (2 sub-exceptions)"),
    ],
    ids=lambda value: value.message if isinstance(value, BaseExceptionGroup) else "",
)
def test_a_group_of_one_kind_is_stored_by_its_first_member(
    error: BaseExceptionGroup[BaseException], words: str
) -> None:
    failure = failure_of(error)
    assert words in failure.summary
    assert len(failure.message) <= failures.MESSAGE_LIMIT
    assert failure.chain[0] == (failure.kind, failure.message)
    assert "Group" in failure.traceback


def test_the_causes_of_a_group_of_one_kind_are_those_of_its_first_member() -> None:
    member = ValueError("a")
    member.__cause__ = OSError("b")
    assert failure_of(ExceptionGroup("one", [member])).chain == (("ValueError", "a"), ("OSError", "b"))


@pytest.mark.parametrize("limit", [0, 1, 100, 101])
def test_a_long_traceback_keeps_both_ends(limit: int) -> None:
    error = caught(lambda: exec("raise ValueError('x' * 3000 + 'end')"))
    with override_settings(PGJOBS={"BOUNDS": {"traceback_chars": limit}}):
        text = failure_of(error).traceback
    before, between, after = text.split("\n… ")[0], *text.split("\n… ")[1].split(" characters …\n")
    assert len(before) == len(after) == limit // 2
    whole = failure_of(error).traceback
    assert len(before) + int(between) + len(after) == len(whole)
    assert whole.startswith(before)
    assert whole.endswith(after)


@pytest.mark.parametrize("cause", [False, True], ids=["its own", "of its cause"])
def test_a_very_long_message_goes_to_a_log_shortened(caplog: pytest.LogCaptureFixture, *, cause: bool) -> None:
    """10 MB in one record hold up whoever collects the logs; kind and end of the message stay."""
    long = ValueError("x" * 10 * 1024 * 1024 + "the end")

    def raises() -> None:
        if cause:
            raise RuntimeError("outer") from long
        raise long

    info, text = Account(caught(raises)).for_log()
    logging.getLogger("django_pgjobs").error("failed%s", text, exc_info=info)
    assert len(caplog.text) < 2 * LOG_LIMIT
    assert "ValueError: xxx" in caplog.text
    assert ("RuntimeError: outer" if cause else "the end") in caplog.text


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "grün ←", "\x1b[31m"])
def test_everything_kept_fits_into_the_database(text: str) -> None:
    """PostgreSQL's text holds neither NUL nor lone surrogates."""
    failure = failure_of(caught(lambda: exec("raise ValueError(text)", {"text": text})))
    for kept in (failure.kind, failure.message, failure.traceback, failure.summary):
        assert "\0" not in kept
        kept.encode()
    assert json.loads(json.dumps(failure.chain)) == [[failure.kind, failure.message]]


def test_clean_leaves_ordinary_text_alone() -> None:
    assert clean("grün ← é\n") == "grün ← é\n"
    assert clean("\0 \udfff") == "\\0 \\udfff"
