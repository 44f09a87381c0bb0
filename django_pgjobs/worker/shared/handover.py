"""The facts that a worker started by ``call_command`` hands over to its executors: databases, import path, test
environment.

Executors are processes of their own and read the settings themselves, which know nothing of what the program did since:
a test runner names other databases, and collects mails in a list. That worker therefore writes these facts into the
environment of its executors; each takes them over before its first connection, and mails travel back in a folder. A
worker started from a command line hands nothing over.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

VARIABLE = "PGJOBS_HANDED_OVER"

_KEYS = ("NAME", "HOST", "PORT", "USER", "PASSWORD")


@contextlib.contextmanager
def handing_over() -> Iterator[dict[str, str]]:
    """Within the block, yield what executors need in their environment; afterwards ``mail.outbox`` has their mails.

    Mails are collected only where a test environment is set up (Django's test runner, pytest-django).
    """
    from django.core import mail  # here for start-up time: few executors need it

    facts: dict[str, object] = {"databases": _databases(), "mails": None, "debug": settings.DEBUG}
    # As multiprocessing does: what a runner has put on the path, jobs may be imported from.
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    with contextlib.ExitStack() as stack:
        if hasattr(mail, "outbox"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgjobs-mails-")))
            stack.callback(_collect, folder)
            facts["mails"] = str(folder)
        yield {VARIABLE: json.dumps(facts), "PYTHONPATH": path}


def take_over(environment: Any = os.environ) -> None:
    """In an executor: use what its worker has handed over, if anything. Call it before the first connection.

    Raises ``ImproperlyConfigured`` where this process' settings lack one of the databases.
    """
    handed = environment.pop(VARIABLE, None)
    if handed is None:
        return
    facts = json.loads(handed)
    _use_databases(facts["databases"])
    if facts["mails"] is not None:
        from django.core import mail  # here for start-up time
        from django.test.utils import setup_test_environment  # here for start-up time

        setup_test_environment(debug=facts["debug"])
        mail.outbox = _Outbox(Path(facts["mails"]))


def _databases() -> dict[str, dict[str, object]]:
    return {
        using: {key: values[key] for key in _KEYS if isinstance(values.get(key), (str, int))}
        for using, values in _settings().items()
    }


def _use_databases(handed: Mapping[str, Mapping[str, object]]) -> None:
    own = _settings()
    if unknown := sorted(handed.keys() - own.keys()):
        raise ImproperlyConfigured(
            f"the settings of the executor have no database {unknown[0]!r}: it reads the settings module, not what a "
            "test has overridden"
        )
    connections.close_all()  # an app may have asked its database while it was set up
    for using, values in handed.items():
        own[using].update(values)


def _settings() -> dict[str, dict[str, object]]:
    # The very dicts that connections are made of; test runners write into them too.
    found: dict[str, dict[str, object]] = connections.settings
    return found


class _Outbox(list[Any]):
    """An executor's ``mail.outbox``: a mail that is put there is written into the folder of the worker, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.numbers = itertools.count()

    def append(self, message: Any) -> None:
        super().append(message)
        written = copy.copy(message)
        written.connection = None
        number = next(self.numbers)
        unfinished = self.folder / f".{os.getpid()}-{number}"
        unfinished.write_bytes(pickle.dumps(written))
        # A whole file or none: an executor may be killed while it writes.
        unfinished.rename(self.folder / f"{os.getpid()}-{number}.mail")


def _collect(folder: Path) -> None:
    from django.core import mail  # here for start-up time

    files = sorted(folder.glob("*.mail"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    for file in files:
        mail.outbox.append(pickle.loads(file.read_bytes()))  # noqa: S301  written by our own executors
