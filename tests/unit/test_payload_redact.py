"""What people may see of a job's arguments: nothing sensitive, and in doubt nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from django_pgjobs.serialization.payload import HIDDEN, redact


def pay(user: int, password: str, *codes: str, note: str = "", **extra: Any) -> None: ...


PAY = inspect.signature(pay)
EVERYTHING = (7, "pw", "a", "b"), {"note": "n", "token": "t", "plain": 1}


@pytest.mark.parametrize(
    ("sensitive", "hidden"),
    [
        (set(), set()),
        ({"password"}, {"password"}),
        ({"codes", "note"}, {"codes", "note"}),
        ({"token"}, {"token"}),
    ],
)
def test_sensitive_arguments_are_hidden(sensitive: set[str], hidden: set[str]) -> None:
    shown = redact(PAY, *EVERYTHING, frozenset(sensitive))
    assert {name for name, value in shown.items() if value == HIDDEN} == hidden
    assert set(shown) == {"user", "password", "codes", "note", "token", "plain"}


def test_all_keywords_together_may_be_sensitive() -> None:
    shown = redact(PAY, *EVERYTHING, frozenset({"extra"}))
    assert shown["extra"] == HIDDEN
    assert "token" not in shown


def test_without_a_signature_everything_is_hidden() -> None:
    assert redact(None, (1,), {"a": 2}, frozenset()) == {"args[0]": HIDDEN, "a": HIDDEN}


def login(password: str) -> None: ...


def test_arguments_that_do_not_fit_are_hidden_where_in_doubt() -> None:
    signature = inspect.signature(login)
    assert redact(signature, (), {"pw": "x"}, frozenset({"password"})) == {"pw": HIDDEN}
    assert redact(signature, ("x", "y"), {}, frozenset({"password"})) == {"args[0]": HIDDEN, "args[1]": HIDDEN}
    assert redact(signature, (1,), {"pw": "x"}, frozenset()) == {"args[0]": 1, "pw": "x"}
