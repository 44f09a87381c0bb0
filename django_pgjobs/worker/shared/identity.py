"""The identity of the database that a process works on: an executor that sees another one must not run a single job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from django_pgjobs.worker.shared.connection import WorkerConnection

TableIdentity = tuple[str, int, int | None]

Answer = TypeVar("Answer")


def identity_of(using: str, role: str, seconds: float) -> TableIdentity:
    """Return (server, database, job table) as a connection of ``using`` sees them. Raises the error that it has met.

    A server that says nothing is given up after ``seconds`` (``TimeoutError``), wherever it fell silent.
    """

    def ask() -> TableIdentity:
        db = WorkerConnection(using, role, statement_seconds=seconds)
        db.close()
        return db.identity.table_identity

    return answered_within(seconds, ask)


def answered_within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Return what a server answers to ``ask``, or raise what that raises; ``TimeoutError`` after so many seconds."""
    answers: queue.SimpleQueue[tuple[Answer] | BaseException] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((ask(),))
        except BaseException as error:
            answers.put(error)

    # A thread, since nothing bounds how long an answer may take on its way.
    threading.Thread(target=answer, name="pgjobs-identity", daemon=True).start()
    try:
        found = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"it does not answer within {seconds:g} s") from None
    if isinstance(found, BaseException):
        raise found
    return found[0]
