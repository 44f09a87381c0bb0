"""The logger that every line of ours goes through."""

from __future__ import annotations

import logging

import pytest

from django_pgjobs.logs import safe_logger


@pytest.mark.parametrize(
    "name", ["a\n2026-01-01 00:00:00,000 CRITICAL forged", "a\x1b[2Kb", "a\u2028b", "a\rb", "\u202egnp.exe"]
)
def test_a_rows_text_cannot_forge_a_line_of_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """P15: whoever may write rows chooses a job's name; what a terminal would obey is written as its number."""
    with caplog.at_level(logging.WARNING, "django_pgjobs.test"):
        safe_logger("django_pgjobs.test").warning("job parked %s: %d", f"name={name} job=7", 3)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage() == f"job parked name={name.encode('unicode_escape').decode()} job=7: 3"
