"""The page ``/metrics`` of a worker: a thread that owns a port, and a short-lived one for each scrape.

A client that connects and never writes or reads costs the worker one idle thread for five seconds, and at most eight of
them; the next scraper then takes the turn of the oldest. A port that cannot be had is reported once and tried again.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.metrics.families import CONTENT_TYPE
from django_pgjobs.serialization.escapes import one_line

SCRAPE_SECONDS = 5.0
"""Maximum time of a scrape in all."""

MOST_SCRAPES = 8
"""Maximum number of scrapes that are under way at once."""

RETRY_SECONDS = 10.0
POLL_SECONDS = 0.5
BACKLOG = 16


class MetricsServer(threading.Thread):
    """Serves what ``page`` returns, in threads of its own. Neither an error in it nor one of a scraper ends it."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        super().__init__(name="pgjobs-metrics", daemon=True)
        self.host = host
        self.port = port
        self.page = page
        self.stopping = threading.Event()
        self.open: dict[socket.socket, float] = {}
        self.lock = threading.Lock()
        self.refused = False
        self.failed = False

    @property
    def address(self) -> str:
        """The URL of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def run(self) -> None:
        """Listen, answer, and listen again after trouble, until stopped."""
        while not self.stopping.is_set():
            try:
                with self._listen() as listener:
                    self._said()
                    self._accept(listener)
            except OSError as error:
                if not self.refused:
                    log.error("metrics cannot be served, tried again url=%s: %s", self.address, one_line(error))
                self.refused = True
                self.stopping.wait(RETRY_SECONDS)
        self._cut(clock.monotonic() + SCRAPE_SECONDS)

    def stop(self) -> None:
        """Ask it to end; does not wait."""
        self.stopping.set()

    def _listen(self) -> socket.socket:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener

    def _said(self) -> None:
        log.info("metrics are served%s url=%s", " after all" if self.refused else "", self.address)
        self.refused = False

    def _accept(self, listener: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while not self.stopping.is_set():
                if selector.select(POLL_SECONDS):
                    with suppress(BlockingIOError, ConnectionError):
                        self._begin(listener.accept()[0])
                self._cut(clock.monotonic())

    def _begin(self, scraper: socket.socket) -> None:
        scraper.settimeout(SCRAPE_SECONDS)
        with self.lock:
            if len(self.open) >= MOST_SCRAPES:
                oldest = min(self.open, key=self.open.__getitem__)
                del self.open[oldest]  # its thread ends when it gets to it: the next one to go is another
                _shut(oldest)
            self.open[scraper] = clock.monotonic() + SCRAPE_SECONDS
        try:
            threading.Thread(target=self._answer, args=(scraper,), name="pgjobs-scrape", daemon=True).start()
        except RuntimeError:  # no thread can be started
            self._close(scraper)

    def _answer(self, scraper: socket.socket) -> None:
        try:
            _Scrape(scraper, ("", 0), self)  # type: ignore[arg-type]  # it asks its server for the page alone
        except OSError as error:
            log.debug("scrape of metrics was broken off: %s", error)
        except Exception:
            with self.lock:
                first, self.failed = not self.failed, True
            if first:
                log.exception("metrics cannot be written")
        finally:
            self._close(scraper)

    def _close(self, scraper: socket.socket) -> None:
        with self.lock:
            self.open.pop(scraper, None)
            scraper.close()

    def _cut(self, now: float) -> None:
        """Break off scrapes that take too long: each read of a slow scraper would get the full time again."""
        with self.lock:
            for scraper, until in self.open.items():
                if now >= until:
                    _shut(scraper)


def _shut(scraper: socket.socket) -> None:
    with suppress(OSError):
        scraper.shutdown(socket.SHUT_RDWR)


class _Scrape(BaseHTTPRequestHandler):
    """One request, one answer."""

    server: Any
    timeout = SCRAPE_SECONDS
    server_version, sys_version = "django-pgjobs", ""

    def do_GET(self) -> None:
        """Answer with the page."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer without the page."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        try:
            page = self.server.page()
        except Exception:
            self.send_error(500)
            raise
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if body:
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape comes every few seconds."""
