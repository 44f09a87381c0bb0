"""``manage.py pgjobs`` as tests run it: within their process, or as somebody at a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.db import connection

from tests.plugins.fix_db import WORKER


def pgjobs(*arguments: object) -> tuple[int, str, str]:
    """Run a subcommand: (exit status, stdout, stderr)."""
    out, err = StringIO(), StringIO()
    try:
        call_command("pgjobs", *map(str, arguments), stdout=out, stderr=err)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


BEAT = {
    "id": WORKER, "name": "web-1", "host": "h", "pid": 1, "processes": 1, "threads": 2, "async_slots": 1,
    "version": "1", "release": "", "state": "running", "running": 0, "finished": 0, "protocol": 1,
}  # fmt: skip


def run(*arguments: str, env: dict[str, str] | None = None, shell: bool = False) -> subprocess.CompletedProcess[str]:
    """Run ``pgjobs``, or with ``shell`` a line of it, as somebody at a terminal, on the test database."""
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    ours = {
        "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONWARNINGS": "ignore",
    }
    program: Any = arguments[0] if shell else [sys.executable, "-m", "django", "pgjobs", *arguments]
    environment = {**os.environ, **ours, **(env or {})}
    return subprocess.run(
        program, env=environment, shell=shell, text=True, timeout=120, check=False, capture_output=True
    )


def printed(*arguments: object) -> tuple[int, str]:
    """Run a subcommand: (exit status, stdout)."""
    status, out, _ = pgjobs(*arguments)
    return status, out
