"""Who may cancel a job may give a reason for it, and not a line of the log."""

from __future__ import annotations

import logging

import pytest

from django_pgjobs.steering import batching
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.trail import Trail


def test_an_operators_words_stay_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        trail = Trail("cancel", "anna\r\n", "too dear\n2026-01-01 CRITICAL forged")
        batching.logged(trail, Steered(1, {"busy": 2}))
    assert caplog.messages == [
        "operator's cancel changed=1 skipped=busy:2 by=anna: too dear 2026-01-01 CRITICAL forged"
    ]
