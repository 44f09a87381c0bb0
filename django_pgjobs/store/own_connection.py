"""A connection of one's own to a database of the project's settings, made by the project's engine, without its pool."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
from django.db import connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def own_wrapper(using: str, defaults: Mapping[str, object], overrides: Mapping[str, object]) -> BaseDatabaseWrapper:
    """Return Django's wrapper of a connection yet to be opened; both are options, under and over the project's own.

    PostGIS, tenants, service files and short-lived passwords work as in any other connection of the project.
    """
    wrapper = connections.create_connection(using)
    options = {key: value for key, value in wrapper.settings_dict["OPTIONS"].items() if key != "pool"}
    options = {**defaults, **options, **overrides}
    wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options, "CONN_MAX_AGE": None}
    return wrapper


def use_autocommit(wrapper: BaseDatabaseWrapper) -> None:
    """Set an open connection to autocommit, regardless of the project's settings."""
    connection: psycopg.Connection[object] = wrapper.connection
    if not connection.autocommit:
        connection.rollback()
        connection.autocommit = wrapper.autocommit = True
    connection.prepare_threshold = None  # who knows whose server process this is


def cut(connection: psycopg.Connection[object]) -> None:
    """Cut the way to the server, from another thread: who waits for an answer there meets an error. Never raises."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as way:
        way.shutdown(socket.SHUT_RDWR)
