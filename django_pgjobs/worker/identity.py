"""Which database a process works on: an executor that sees another one must not run a single job."""

from __future__ import annotations

from django.db import connections

from django_pgjobs import store

Identity = tuple[str, int, int | None]


def identity_of(alias: str) -> Identity:
    """Return (server, database, job table) as Django's connection ``alias`` sees them, and close it again."""
    try:
        return of(store.read_identity(store.on(alias)))
    finally:
        connections[alias].close()


def of(identity: store.Identity) -> Identity:
    """Return the part of an identity that is the same on every connection."""
    return (identity.system, identity.database, identity.table)
