"""A worker's page of metrics: what it answers, and what scrapers and ports in trouble cost, with real sockets."""

from __future__ import annotations

import logging
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from django_pgjobs.metrics import server
from django_pgjobs.metrics.server import MetricsServer
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.ports import free_port

BIG = b"x 1\n" * 5_000_000
"""More than any socket buffers."""


Serve = Callable[..., MetricsServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start servers, and see that nothing of them is left."""
    monkeypatch.setattr(server, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(server, "RETRY_SECONDS", 0.05)
    started: list[MetricsServer] = []

    def start(page: Callable[[], bytes] = lambda: b"x 1\n", host: str = "127.0.0.1", port: int = 0) -> MetricsServer:
        started.append(MetricsServer(host, port or free_port(host), page))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop()
    for each in started:
        each.join(patience(10))
        assert not each.is_alive()
    wait_until(lambda: not any(each.open for each in started), 10, "no scrape is open")


def scrape(made: MetricsServer, path: str = "/metrics", method: str = "GET") -> bytes:
    request = urllib.request.Request(made.address.removesuffix("/metrics") + path, method=method)
    with urllib.request.urlopen(request, timeout=patience(10)) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return bytes(answer.read())


def scraping() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pgjobs-scrape"]


def answers(made: MetricsServer) -> bool:
    with suppress(OSError):
        return bool(scrape(made))
    return False


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_answers_with_the_page_of_that_moment(serve: Serve, host: str) -> None:
    pages = iter(range(1000))
    made = serve(lambda: b"x %d\n" % next(pages), host="127.0.0.1" if host == "localhost" else host)
    wait_until(lambda: answers(made), 10, "it answers")
    first, second = scrape(made), scrape(made)
    assert int(second.split()[1]) == int(first.split()[1]) + 1
    assert scrape(made, method="HEAD") == b""
    assert scrape(made, "/metrics?name[]=x")


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/", "GET", 404), ("/x", "GET", 404), ("/metrics", "POST", 501)]
)
def test_what_is_not_the_page_is_refused(serve: Serve, path: str, method: str, status: int) -> None:
    made = serve()
    wait_until(lambda: answers(made), 10, "it answers")
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(made, path, method)
    assert refused.value.code == status
    refused.value.close()


def test_a_port_that_is_taken_is_said_once_and_served_once_it_is_free(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_pgjobs")
    tries: list[None] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        made = serve(port=other.getsockname()[1])
        listen = made._listen

        def counted() -> socket.socket:
            tries.append(None)
            return listen()

        made._listen = counted  # type: ignore[method-assign]
        wait_until(lambda: len(tries) >= 3, 10, "it has tried three times")
    wait_until(lambda: answers(made), 10, "it answers")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert len(lines) == 2, lines
    assert lines[0][0] == "ERROR"
    assert re.search(
        r"metrics cannot be served, tried again url=http://127\.0\.0\.1:\d+/metrics: .*in use", lines[0][1]
    )
    assert lines[1] == ("INFO", f"metrics are served after all url={made.address}")


@pytest.mark.parametrize("words", [b"", b"GET /metr", b"GET /metrics HTTP/1.0\r\n\r\n"], ids=["mute", "half", "deaf"])
def test_scrapers_that_hang_take_no_place_for_long(serve: Serve, monkeypatch: pytest.MonkeyPatch, words: bytes) -> None:
    """However many connect and neither write nor read: the next one is served at once."""
    made = serve(lambda: BIG)
    wait_until(lambda: answers(made), 10, "it answers")
    hanging = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(3 * server.MOST_SCRAPES)]
    try:
        for each in hanging:
            with suppress(OSError):
                each.sendall(words)
        wait_until(lambda: len(made.open) >= server.MOST_SCRAPES, 10, "they are as many as may be")
        assert len(scrape(made)) == len(BIG)
        wait_until(lambda: len(scraping()) <= server.MOST_SCRAPES, 10, "those that had to go have ended")
        for each in made.open:
            made.open[each] = 0.0  # their time is over
        wait_until(lambda: not made.open, 10, "they have been cut off")
    finally:
        for each in hanging:
            each.close()


@pytest.mark.parametrize(
    "words",
    [
        b"\0\xff\n\n",
        b"GET " + b"a" * 100_000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\n" + b"a: b\r\n" * 200,
    ],
    ids=["bytes", "long", "version", "headers"],
)
def test_nonsense_ends_its_own_connection_alone(serve: Serve, caplog: pytest.LogCaptureFixture, words: bytes) -> None:
    made = serve()
    wait_until(lambda: answers(made), 10, "it answers")
    caplog.clear()  # another program may have had the port first
    with socket.create_connection(("127.0.0.1", made.port), timeout=patience(10)) as other:
        with suppress(OSError):
            other.sendall(words)
            other.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while other.recv(65536):
                pass
    assert scrape(made) == b"x 1\n"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_page_that_cannot_be_written_is_said_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def page() -> bytes:
        raise ValueError("no figures")

    made = serve(page)
    for _ in range(2):
        wait_until(lambda: status_of(made) == 500, 10, "it answers with 500")
    wait_until(lambda: caplog.records, 10, "it is said")
    assert [record.getMessage() for record in caplog.records] == ["metrics cannot be written"]
    assert made.is_alive()


def status_of(made: MetricsServer) -> int | None:
    try:
        scrape(made)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code
    except OSError:
        return None
    return 200
