"""Asking which database it is ends, whatever the server does or does not say."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from django.db import connections

from django_pgjobs.worker.executor.main import AWAY
from django_pgjobs.worker.shared.identity import identity_of


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_silent_server_is_taken_for_one_that_is_away(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """D118: a plain connection of Django would wait for two minutes and more, and fail as the code's own fault."""
    settings = connections["default"].settings_dict
    elsewhere = {**settings, "HOST": "127.0.0.1", "PORT": str(silent)}
    monkeypatch.setitem(connections.settings, "default", elsewhere)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="does not answer within") as raised:
        identity_of("default", "pgjobs test", 0.5)
    assert isinstance(raised.value, AWAY)
    assert time.monotonic() < began + 60
