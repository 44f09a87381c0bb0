"""A TCP proxy before PostgreSQL that misbehaves on request. Own thread, own event loop, IPv4 loopback.

    with Proxy.before(server.url) as proxy:
        worker(env={"DATABASE_URL": proxy.url})
        proxy.cut("pgjobs .* finalise")                       # RST; how="fin" closes politely
        rule = proxy.blackhole("keep", direction="down")  # half-open: accepted, never answered
        proxy.delay(0.2); proxy.throttle(20_000); proxy.refuse()
        lost = proxy.lose_reply("UPDATE pgjobs_job")      # executed and committed; the answer never arrives
        lost.wait(); proxy.heal()

Every fault names connections by a regular expression that is searched in their ``application_name`` (the workers'
threads: ``pgjobs NAME claim|finalise|keep|maintenance|listen``, executors: ``pgjobs HEX-N NAME``); all by default. A
fault holds for present and later connections until it is healed. What a blackhole has swallowed arrives when it is
healed, unless the connection is cut: so does the network.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.chaos.wire import CANCEL_REQUEST, ENCRYPTION, Messages, Sent, Startup

T = TypeVar("T")
Direction = Literal["both", "up", "down"]
How = Literal["rst", "fin"]

CHUNK = 65536
QUEUED = 256
HOST = "127.0.0.1"


@dataclass(eq=False)
class Rule:
    """A fault in force. ``hits`` counts what it has done; ``wait`` returns once it has done it."""

    kind: Literal["blackhole", "delay", "throttle", "lose_request", "lose_reply", "hold_reply"]
    match: str
    direction: Direction = "both"
    amount: float = 0.0
    statement: str = ""
    times: int | None = None
    hits: int = 0
    hit: threading.Event = field(default_factory=threading.Event)
    healed: bool = False

    def is_for(self, name: str, direction: Direction) -> bool:
        """Whether it concerns this direction of a connection of that name."""
        return self.direction in ("both", direction) and re.search(self.match, name) is not None

    def takes(self, name: str, texts: tuple[str, ...]) -> bool:
        """Whether it concerns a group of statements; counts."""
        if self.times is not None and self.hits >= self.times:
            return False
        found = re.search(self.match, name) and any(re.search(self.statement, text) for text in texts)
        if found:
            self.hits += 1
        return bool(found)

    def wait(self, seconds: float = 30.0) -> None:
        """Return when it has struck once; fail after ``seconds``."""
        if not self.hit.wait(seconds):
            raise AssertionError(f"no {self.statement or self.kind!r} of {self.match or 'anybody'!r} came by")


class Wire:
    """One connection, both its halves."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client_reader, self.client = reader, writer
        self.server: asyncio.StreamWriter | None = None
        self.name = ""
        self.sent = Sent()
        self.losing: list[tuple[Rule, tuple[str, ...]]] = []
        self.kept: list[bytes] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Forward both ways until either half ends."""
        try:
            packet = await self._startup()
            await self._gate("up")
            reader, self.server = await asyncio.open_connection(*self.proxy.upstream)
            self.server.write(packet)
            if Startup(packet).code == CANCEL_REQUEST:
                await self._copy_rest(reader)
                return
            self.tasks = [
                asyncio.ensure_future(self._pump("up", self.client_reader, self.server, self._from_client)),
                asyncio.ensure_future(self._pump("down", reader, self.client, self._from_server)),
            ]
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, EOFError):
            pass
        finally:
            self.cut("fin")
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _startup(self) -> bytes:
        """Read the first packet, refusing encryption, and learn the name of the connection."""
        while True:
            head = await self.client_reader.readexactly(4)
            packet = head + await self.client_reader.readexactly(struct.unpack("!I", head)[0] - 4)
            startup = Startup(packet)
            if startup.code not in ENCRYPTION:
                self.name = startup.parameters.get("application_name", "")
                return packet
            self.client.write(b"N")

    async def _copy_rest(self, reader: asyncio.StreamReader) -> None:
        self.client.write(await reader.read(-1))

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        judge: Callable[[bytes], bytes],
    ) -> None:
        """Read, judge message by message, and write when it is due."""
        due: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(QUEUED)
        sender = asyncio.ensure_future(self._send(direction, due, writer))
        messages = Messages()
        try:
            while chunk := await reader.read(CHUNK):
                out = b"".join(map(judge, messages.feed(chunk)))
                if out:
                    await due.put((time.monotonic(), out))
            await due.put(None)
            await sender
        except OSError:
            pass
        finally:
            sender.cancel()

    async def _send(
        self, direction: Direction, due: asyncio.Queue[tuple[float, bytes] | None], writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while entry := await due.get():
                at, out = entry
                delay = sum(rule.amount for rule in self._rules("delay", direction))
                await asyncio.sleep(max(0.0, at + delay - time.monotonic()))
                await self._gate(direction)
                for rule in self._rules("throttle", direction):
                    await asyncio.sleep(len(out) / rule.amount)
                writer.write(out)
                await writer.drain()

    def _rules(self, kind: str, direction: Direction) -> list[Rule]:
        return [rule for rule in self.proxy.rules if rule.kind == kind and rule.is_for(self.name, direction)]

    async def _gate(self, direction: Direction) -> None:
        """Wait while this direction is a black hole."""
        while holes := self._rules("blackhole", direction):
            for rule in holes:
                rule.hits += 1
                rule.hit.set()
            changed = self.proxy.changed
            await changed.wait()

    def _from_client(self, message: bytes) -> bytes:
        group = self.sent.see(message)
        if group is not None:
            for rule in self.proxy.rules:
                if rule.kind == "lose_request" and rule.takes(self.name, group):
                    self.cut("rst")
                    rule.hit.set()
                    return b""
                if rule.kind in ("lose_reply", "hold_reply") and rule.takes(self.name, group):
                    self.losing.append((rule, group))
                    break
        return message

    def _from_server(self, message: bytes) -> bytes:
        if not self.losing or not self.sent.groups or self.losing[0][1] is not self.sent.groups[0]:
            if message[:1] == b"Z":
                self.sent.answered()
            return message
        self.kept.append(message)
        if message[:1] != b"Z":
            return b""
        rule, _ = self.losing.pop(0)
        self.sent.answered()
        kept, self.kept = b"".join(self.kept), []
        if rule.kind == "lose_reply":
            self.cut("rst")
            rule.hit.set()
            return b""
        rule.hit.set()
        self.tasks.append(asyncio.ensure_future(self._deliver(rule, kept)))
        return b""

    async def _deliver(self, rule: Rule, kept: bytes) -> None:
        while not rule.healed:
            await self.proxy.changed.wait()
        with suppress(OSError):
            self.client.write(kept)

    def cut(self, how: How) -> None:
        """End both halves, by a reset or politely."""
        for writer in (self.client, self.server):
            if writer is None or writer.transport.is_closing():
                continue
            if how == "rst":
                sock = writer.get_extra_info("socket")
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()
        for task in self.tasks:
            task.cancel()


class Proxy:
    """The proxy. Its methods may be called from any thread; they return when the fault is in force."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.port = 0
        self.rules: list[Rule] = []
        self.wires: set[Wire] = set()
        self.accepted = 0
        self.loop = asyncio.new_event_loop()
        self.changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._url = ""

    @classmethod
    def before(cls, url: str) -> Self:
        """Return a proxy before the server of a DATABASE_URL; ``url`` is then the way through it."""
        parts = urlsplit(url)
        proxy = cls((parts.hostname or HOST, parts.port or 5432))
        proxy._url = url
        return proxy

    @property
    def url(self) -> str:
        """The DATABASE_URL through the proxy."""
        parts = urlsplit(self._url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@{HOST}:{self.port}" if login else f"{HOST}:{self.port}"))

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    # Faults

    def cut(self, match: str = "", how: How = "rst") -> int:
        """End connections; return how many."""

        async def cutting() -> int:
            wires = [wire for wire in self.wires if re.search(match, wire.name)]
            for wire in wires:
                wire.cut(how)
            return len(wires)

        return self._call(cutting())

    def blackhole(self, match: str = "", direction: Direction = "both") -> Rule:
        """Accept and forward nothing: *up* is towards the server."""
        return self._add(Rule("blackhole", match, direction))

    def delay(self, seconds: float, match: str = "", direction: Direction = "both") -> Rule:
        """Let everything arrive later, each way."""
        return self._add(Rule("delay", match, direction, seconds))

    def throttle(self, bytes_per_second: float, match: str = "", direction: Direction = "both") -> Rule:
        """Let little through."""
        return self._add(Rule("throttle", match, direction, bytes_per_second))

    def lose_request(self, statement: str, match: str = "", times: int | None = 1) -> Rule:
        """Cut a connection when it sends a statement that matches; the server never sees it."""
        return self._add(Rule("lose_request", match, statement=statement, times=times))

    def lose_reply(self, statement: str, match: str = "", times: int | None = 1) -> Rule:
        """Let a matching statement (``COMMIT``, or one in autocommit) be done, and cut instead of answering."""
        return self._add(Rule("lose_reply", match, statement=statement, times=times))

    def hold_reply(self, statement: str, match: str = "", times: int | None = 1) -> Rule:
        """Keep the answer to a matching statement until the rule is healed."""
        return self._add(Rule("hold_reply", match, statement=statement, times=times))

    def refuse(self) -> None:
        """Take no new connections (ECONNREFUSED); those that are open go on."""
        self._call(self._refuse())

    def heal(self, *rules: Rule) -> None:
        """Take back these faults, or all of them; listen again."""
        self._call(self._heal(rules))

    # Facts

    def names(self, match: str = "") -> list[str]:
        """Return the names of the connections that are open."""

        async def found() -> list[str]:
            return sorted(wire.name for wire in self.wires if re.search(match, wire.name))

        return self._call(found())

    # The loop

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def _add(self, rule: Rule) -> Rule:
        async def adding() -> None:
            self.rules.append(rule)

        self._call(adding())
        return rule

    async def _heal(self, rules: tuple[Rule, ...]) -> None:
        for rule in rules or tuple(self.rules):
            rule.healed = True
            if rule in self.rules:
                self.rules.remove(rule)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        if self._listener is None and not rules:
            await self._listen()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, HOST, self.port, reuse_address=True)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        wire = Wire(self, reader, writer)
        self.wires.add(wire)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await wire.serve()
        except asyncio.CancelledError:
            pass
        finally:
            self.wires.discard(wire)
            self._serving.discard(task)

    async def _close(self) -> None:
        await self._refuse()
        await asyncio.sleep(0)  # those just accepted begin to be served, so that they can be cut
        for wire in list(self.wires):
            wire.cut("rst")
        serving: list[Awaitable[None]] = [*self._serving]
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # in which the loop closes what was cut
