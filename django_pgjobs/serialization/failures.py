"""The stored form of an exception: kind, message, chain of causes, traceback. Raises nothing, for any exception.

An exception is the job's code: its properties, methods and class may raise anything. Facts are therefore read through
the descriptors of ``BaseException`` itself. Its text, which only the exception can give, is requested once, and
replaced if that raises.
"""

from __future__ import annotations

import traceback as tracebacks
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django_pgjobs.exceptions import JobSuspended

if TYPE_CHECKING:
    from django_pgjobs.decisions import Failure

MESSAGE_LIMIT = 2000
CHAIN_LIMIT = 20
GROUP_LIMIT = 1000
LOG_LIMIT = 64 * 1024
"""The longest traceback that is logged unchanged, in characters; longer ones are shortened."""

OUR_FILES: set[str] = set()
"""Files whose frames precede every job's own code: its traceback omits them. ``add_own_file`` adds one."""

UNREADABLE = "(its message cannot be read)"

_FACTS = BaseException.__dict__
_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]


def add_own_file(path: str) -> None:
    """Omit the frames of the file ``path``, a module's ``__file__``, before a job's own code. Repeatable.

    For a wrapper around bodies of jobs: otherwise each of their tracebacks begins with its frame.
    """
    OUR_FILES.add(path)


class Account:
    """One exception as it is reported; its traceback is formatted once, on first use."""

    __slots__ = ("_text", "error", "first", "kind", "message", "readable")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.first, others = _first_of_one_kind(error)
        self.kind, self.message = kind_of(self.first), text_of(self.first)
        if others:
            more = f" (and {others} more of this kind)"
            self.message = self.message[: MESSAGE_LIMIT - len(more)] + more
        self.readable = True
        self._text: str | None = None

    def failure(self, limit: int) -> Failure:
        """Return the exception as the history records it, its traceback at most about ``limit`` characters long."""
        from django_pgjobs.decisions import Failure  # here for start-up time

        links = [(self.kind, self.message), *((kind_of(link), text_of(link)) for link in _chain(self.first)[1:])]
        return Failure(self.kind, self.message, tuple(links), shortened(self.traceback(), limit))

    def traceback(self) -> str:
        """Return the formatted traceback from the job's own code on."""
        if self._text is None:
            self._text = self._formatted()
        return self._text

    def _formatted(self) -> str:
        trace = of_the_job(self.error)
        try:
            lines = tracebacks.TracebackException(type(self.error), self.error, trace, compact=True).format()
            return clean("".join(lines))
        except BaseException:
            self.readable = False
            last = f"{kind_of(self.error)}: {text_of(self.error)}\n"
            return clean("".join(["Traceback (most recent call last):\n", *tracebacks.format_tb(trace), last]))

    def for_log(self) -> tuple[Any, str]:
        """Return (``exc_info``, text to add to the message); the text replaces what handlers cannot format."""
        text = self.traceback()
        if self.readable and len(text) <= LOG_LIMIT:
            return (type(self.error), self.error, of_the_job(self.error)), ""
        return None, f"\n{shortened(text, LOG_LIMIT)}"


def _first_of_one_kind(error: BaseException) -> tuple[BaseException, int]:
    """Return what tells of ``error`` in one line, and how many like it stand beside it.

    In a group of exceptions of one kind, in which a ``TaskGroup`` wraps them, that is the first of them.
    """
    leaves: list[BaseException] = []
    nodes: list[BaseException] = [error]
    while nodes and len(leaves) <= GROUP_LIMIT:
        node = nodes.pop()
        if issubclass(type(node), BaseExceptionGroup):
            nodes.extend(reversed(_MEMBERS.__get__(node)))
        elif not issubclass(type(node), JobSuspended):
            leaves.append(node)
    if not leaves or nodes or any(type(leaf) is not type(leaves[0]) for leaf in leaves):
        return error, 0
    return leaves[0], len(leaves) - 1


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    # By identity: an exception's own __eq__ is code of the job.
    while link is not None and all(link is not known for known in links) and len(links) < CHAIN_LIMIT:
        links.append(link)
        cause = _fact(link, "__cause__")
        hidden = cause is not None or _fact(link, "__suppress_context__")
        link = cause if hidden else _fact(link, "__context__")
    return links


def _fact(error: BaseException, name: str) -> Any:
    """Read one of an exception's own facts, bypassing overrides of its class."""
    return _FACTS[name].__get__(error)


def kind_of(error: BaseException) -> str:
    """Return the qualified name of its class."""
    kind = type(error)
    try:
        return clean(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    except BaseException:
        return str(type.__dict__["__qualname__"].__get__(kind))


def full_path(kind: str) -> str:
    """Return a stored kind of exception with its module: ``ValueError`` is stored without the ``builtins.`` of it."""
    return kind if not kind or "." in kind else f"builtins.{kind}"


def text_of(error: BaseException) -> str:
    """Return its message, truncated and cleaned."""
    try:
        text = str.__str__(str(error))
        return clean(text if len(text) <= MESSAGE_LIMIT else f"{text[: MESSAGE_LIMIT - 1]}…")
    except BaseException:
        return UNREADABLE


def of_the_job(error: BaseException) -> TracebackType | None:
    """Return the traceback from the job's own code on: the frames before it are the same for every job."""
    whole: TracebackType | None = _fact(error, "__traceback__")
    link = whole
    while link is not None and link.tb_frame.f_code.co_filename in OUR_FILES:
        link = link.tb_next
    return link or whole


def shortened(text: str, limit: int) -> str:
    """Return the beginning of a traceback, where it started, and the end, which names the exception."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[len(text) - half :]}"


def clean(text: str) -> str:
    """Return ``text`` without the characters that PostgreSQL cannot store: NUL and lone surrogates."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
