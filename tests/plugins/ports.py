"""Ports for what tests start."""

from __future__ import annotations

import random
import socket

# Below those that systems give to outgoing connections: none of these takes the port before its user binds it.
PORTS = range(10_000, 30_000)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of ``host`` that nothing listens on, another one at each call."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.SystemRandom().sample(PORTS, 100):  # tests set random's seed
        with socket.socket(family) as found:
            try:
                found.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port of {host} among a hundred")
