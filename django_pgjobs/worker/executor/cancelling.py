"""In the executor: cancel queries on the server, beside the thread that waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg

from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line

CANCEL_SECONDS = 2.0
"""Maximum time to cancel a query: it needs a connection of its own."""


def cancel_queries(queries: list[object], done: Callable[[], object] = lambda: None) -> None:
    """Cancel the queries of these connections. Returns at once, so an unreachable server delays no job.

    ``done`` is called when no request is under way any more, perhaps in another thread. Once the server has closed a
    request's connection, the request cannot hit a later query.
    """
    if not queries:
        return
    try:
        threading.Thread(target=_cancel, args=(queries, done), name="pgjobs-cancel", daemon=True).start()
    except RuntimeError as error:
        log.error("query of a job cannot be cancelled: %s", error)  # the kill ladder continues
        done()


def _cancel(queries: list[psycopg.Connection[object]], done: Callable[[], object]) -> None:
    for connection in queries:
        try:
            connection.cancel_safe(timeout=CANCEL_SECONDS)
        except Exception as error:
            log.warning("query of a job cannot be cancelled: %s", one_line(error))
    done()
