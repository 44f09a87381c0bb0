"""The demo's web server: Django's development server without its reloader, in this process."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

HOST = "127.0.0.1"
LAST_PORT = 65535
NOT_OURS = (errno.EADDRINUSE, errno.EACCES)


class Files(StaticFilesHandler):
    """Serves the apps' static files also while DEBUG is off."""

    def serve(self, request: Any) -> Any:
        """Find a static file and return it."""
        from django.contrib.staticfiles.views import serve

        return serve(request, self.file_path(request.path), insecure=True)


class Server(ThreadedWSGIServer):
    """Looks after something else now and then."""

    daemon_threads = True
    look: Callable[[], None] = staticmethod(lambda: None)

    def service_actions(self) -> None:
        """Called twice a second; an exception ends the serving."""
        super().service_actions()
        self.look()


def bind(port: int) -> Server:
    """Return a server on this port or the next one that is free. Raises OSError if there is none."""
    while True:
        try:
            server = Server((HOST, port), WSGIRequestHandler)
        except OSError as error:
            if error.errno not in NOT_OURS or port == LAST_PORT:
                raise
            port += 1
        else:
            server.set_app(Files(get_wsgi_application()))
            return server
