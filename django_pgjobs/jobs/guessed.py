"""Methods that other job queues have, and a definition has not: each says what to write here."""

from __future__ import annotations

from django_pgjobs.definition.policy import JobPolicy

GUESSED = (
    "aenqueue", "apply_async", "apply_async_on_commit", "chunks", "configure", "defer", "delay", "delay_on_commit",
    "describe", "enqueue", "map", "on_error", "on_failure", "s", "send", "send_with_options", "si", "signature",
    "starmap",
)  # fmt: skip
"""Methods of other job queues; the table of cures says what to write here."""


class Elsewhere:
    """A method that only other job queues have. It says what to write here.

    By a ``__getattr__`` each attribute of a definition would be found more slowly, and each job reads a dozen.
    ``dir`` does not list it, or Python and mocks would suggest it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, definition: JobPolicy | None, owner: type) -> object:
        whose = "a job" if definition is None else f"job {definition.name!r}"
        from django_pgjobs.values.cures import cure  # here for start-up time

        words = f"{whose} has no {self.name}(): {cure('definition', self.name)}"
        raise AttributeError(words, name=self.name, obj=definition)
