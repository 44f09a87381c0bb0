"""What tests of keys share."""

from __future__ import annotations

from django_pgjobs import Unique, job
from django_pgjobs.models import Job


@job(name="keys.plain")
def plain(number: int = 0) -> None: ...


@job(name="keys.started", unique=Unique("reindex:{shop}", until="started"))
def reindex(shop: str) -> None: ...


@job(name="keys.latest", unique=Unique("sync", on_conflict="replace"))
def latest(number: int) -> None: ...


def abandoned(key: str = "k", queue: str = "default") -> Job:
    one = plain.using(unique=key, queue=queue).register()
    one.abandon()
    return one
