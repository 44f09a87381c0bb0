"""Settings of the workers that fault tests start: those of the end-to-end tests, the chaos jobs, and fail points."""

from __future__ import annotations

import os
import threading
import time

from tests.settings_worker import *  # noqa: F403
from tests.settings_worker import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


if "FAKETIME" in os.environ:
    # libfaketime shifts what a sleep shall last until, even by a clock that it was told to leave alone.
    time.sleep = _sleep  # type: ignore[assignment]
