"""The app of the end-to-end jobs: connects receivers where a test asks for them."""

from __future__ import annotations

import os

from django.apps import AppConfig


class E2EConfig(AppConfig):
    name = "tests.e2e"
    label = "e2e"

    def ready(self) -> None:
        if how := os.environ.get("PGJOBS_TEST_IMPORTING"):
            from tests.e2e import importing

            importing.do(how)
        if os.environ.get("PGJOBS_TEST_RECEIVERS"):
            from tests.e2e import receivers

            receivers.connect()
        if os.environ.get("PGJOBS_TEST_LISTENER"):
            from tests.e2e import receivers

            receivers.add_listener()
        if os.environ.get("PGJOBS_TEST_HOSTILE"):
            from tests.e2e import hostile

            hostile.install()
        if os.environ.get("PGJOBS_TEST_LEAVING"):
            from tests.e2e import telemetry

            telemetry.set_up_as_told()
        if os.environ.get("PGJOBS_TEST_TRACING"):
            from tests.e2e import tracing

            tracing.set_up()
        if os.environ.get("PGJOBS_TEST_SNIPING"):
            from tests.e2e import sniping

            sniping.lie_in_wait()
        if os.environ.get("PGJOBS_TEST_RESOLVING"):
            from tests.e2e import resolving

            resolving.install()
