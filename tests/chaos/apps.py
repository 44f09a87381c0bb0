"""The app of the fault tests' jobs; in workers it arms the fail points that a test has asked for."""

from __future__ import annotations

import os

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos"
    label = "chaos"

    def ready(self) -> None:
        from tests.chaos import compounds, failpoints  # noqa: F401 (defines jobs)

        failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
