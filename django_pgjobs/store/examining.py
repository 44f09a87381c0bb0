"""The server, the roles and our tables as ``pgjobs doctor`` judges them: catalogs only, never the rows of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgjobs.store.database import Database


class ServerFacts(NamedTuple):
    """A server; ``database`` and ``role`` are quoted where SQL needs it; ``now`` is since 1970."""

    now: float
    pid: int
    version: int
    database: str
    role: str
    is_standby: bool


class SessionSetting(NamedTuple):
    """A setting of the session; ``source``: ``user``, ``database``, ``configuration file`` and so on."""

    name: str
    value: str
    source: str


class ConnectionBound(NamedTuple):
    """The ``most`` connections that a *SYSTEM*, *DATABASE* or *ROLE* allows; ``others``: those that no worker has."""

    kind: str
    most: int
    others: int


class TableUpkeep(NamedTuple):
    """A table; ``off``: autovacuum leaves it alone; ``changed``: rows since it was last analysed."""

    name: str
    off: bool
    rows: float
    changed: int
    bytes: int


class MissingGrant(NamedTuple):
    """Rights that a role lacks on one object, as GRANT takes them."""

    role: str
    kind: str
    name: str
    rights: str


class KnownIndex(NamedTuple):
    """An index of a table; ``quoted``: its name for SQL; ``valid``: it can be used, or is being built."""

    table: str
    name: str
    quoted: str
    valid: bool


class OldSnapshot(NamedTuple):
    """A keeper of dead rows: a *transaction* (``name`` is its pid), a *prepared* one or a *slot*.

    Or *hidden*: the role ``name`` sees nothing of what ``owner`` has open.
    """

    kind: str
    name: str
    owner: str
    seconds: float | None


def read_server(db: Database) -> ServerFacts:
    """Return the server behind the connection."""
    return ServerFacts._make(db.fetch("read_server", {})[0])


def read_settings(db: Database, names: Sequence[str]) -> dict[str, SessionSetting]:
    """Return these settings by name."""
    return {row[0]: SessionSetting._make(row) for row in db.fetch("read_settings", {"names": list(names)})}


def read_bounds(db: Database) -> list[ConnectionBound]:
    """Return the bounds of connections, the narrowest first."""
    return [ConnectionBound._make(row) for row in db.fetch("read_bounds", {})]


def read_schemas(db: Database) -> list[tuple[str, bool]]:
    """Return the schemas on the search path that have our tables, and whether every role may create there."""
    return [(name, is_open) for name, is_open in db.fetch("read_schemas", {})]


def read_upkeep(db: Database, tables: Sequence[str]) -> list[TableUpkeep]:
    """Return how the server keeps these tables."""
    return [TableUpkeep._make(row) for row in db.fetch("read_upkeep", {"tables": list(tables)})]


def read_grants(db: Database, roles: Sequence[str], tables: Sequence[str], *, is_bare: bool) -> list[MissingGrant]:
    """Return what these roles lack; an empty name is that of the connection. ``is_bare``: names without schema."""
    params = {"roles": list(roles), "tables": list(tables), "is_bare": is_bare}
    return [MissingGrant._make(row) for row in db.fetch("read_grants", params)]


def read_indexes(db: Database, tables: Sequence[str]) -> list[KnownIndex]:
    """Return the indexes of these tables."""
    return [KnownIndex._make(row) for row in db.fetch("read_indexes", {"tables": list(tables)})]


def read_snapshots(db: Database, *, seconds: float) -> list[OldSnapshot]:
    """Return what has kept dead rows for longer than ``seconds``."""
    return [OldSnapshot._make(row) for row in db.fetch("read_snapshots", {"seconds": seconds})]
