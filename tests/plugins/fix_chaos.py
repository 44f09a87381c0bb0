"""Fixtures of fault tests: ``ground`` is a server of the module's own, a proxy before it, and workers through it.

Django's own connection leads to that server directly, so what a test registers and reads does not suffer the faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.chaos.ground import ChaosServer, Ground, django_on
from tests.chaos.proxy import Proxy
from tests.e2e.stage import Stage
from tests.plugins.fix_worker import Settings, WorkerProcess, Workers

SETTINGS = "tests.chaos.settings"

LEASES: Settings = {
    "LEASE_SECONDS": 1.5,
    "RENEW_SECONDS": 0.4,
    "BEAT_SECONDS": 0.5,
    "STALE_SECONDS": 2.0,
    "POLL_SECONDS": 0.5,
    "RESCUE_GRACE_SECONDS": 16.0,
}
"""The leases of the fault tests, seconds; a worker that is given others says so by ``conf``."""


class ChaosWorkers(Workers):
    """Starts workers with the chaos jobs, short leases, and a way to the database of one's choice."""

    def __init__(self, stage: Stage, url: str) -> None:
        super().__init__(stage)
        self.url = url

    def __call__(
        self,
        *arguments: str,
        conf: Settings | None = None,
        env: Mapping[str, str] | None = None,
        url: str = "",
        **others: Any,
    ) -> WorkerProcess:
        """Start a worker; ``url`` replaces the way through the proxy."""
        where = {"DATABASE_URL": url or self.url, "DJANGO_SETTINGS_MODULE": SETTINGS}
        return super().__call__(*arguments, conf={**LEASES, **(conf or {})}, env={**where, **(env or {})}, **others)


@pytest.fixture(scope="module")
def chaos_server(request: pytest.FixtureRequest, django_test_environment: None) -> Iterator[ChaosServer]:
    """The module's own server; ``SERVER = {"max_connections": 30}`` in a module configures it."""
    with ChaosServer() as server:
        settings = getattr(request.module, "SERVER", {})
        if settings:
            server.configure(**settings)
        yield server


@pytest.fixture
def proxy(chaos_server: ChaosServer) -> Iterator[Proxy]:
    """A proxy before that server; healed at the end."""
    with Proxy.before(chaos_server.url) as proxy:
        yield proxy


@pytest.fixture
def ground(chaos_server: ChaosServer, proxy: Proxy, stage: Stage, django_db_blocker: Any) -> Iterator[Ground]:
    """Server, proxy, stage, journal, producer and workers of one test; nothing is left behind."""
    chaos_server.empty()
    workers = ChaosWorkers(stage, proxy.url)
    with django_db_blocker.unblock(), django_on(chaos_server.url):
        found = Ground(chaos_server, proxy, stage, workers)
        try:
            yield found
        except BaseException:
            for each in workers.started:
                each.kill()
            raise
        finally:
            proxy.heal()
            chaos_server.start()
            found.close()
