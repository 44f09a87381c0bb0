"""What tests of keys share."""

from __future__ import annotations

from django_pgjobs import job
from django_pgjobs.models import Job


@job(name="keys.plain")
def plain(number: int = 0) -> None: ...


@job(name="keys.started", key="reindex:{shop}", key_scope="until_started")
def reindex(shop: str) -> None: ...


@job(name="keys.latest", key="sync", on_conflict="replace")
def latest(number: int) -> None: ...


def abandoned(key: str = "k", queue: str = "default") -> Job:
    one = plain.using(key=key, queue=queue).register()
    one.abandon()
    return one
