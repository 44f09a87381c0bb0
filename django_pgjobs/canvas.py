"""``chain``, ``group`` and ``chord``, for those who know them from Celery: values that become a ``Flow``.

::

    steps = chain(fetch.bind(7), group([resize.bind(7), scan.bind(7)]), publish.bind(7))
    steps.register()

Building one stores nothing. Results are not passed on: for that, use ``Flow`` and ``Node.result``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain as chained
from typing import TYPE_CHECKING, Literal, Never

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.flows.builtin import checked_calls
from django_pgjobs.flows.flow import Flow, Node
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.values.asynchronous import asynchronous

if TYPE_CHECKING:
    from django_pgjobs.models import Job


@dataclass(frozen=True, slots=True)
class Canvas:
    """Calls, and in which order they run. ``chain``, ``group`` and ``chord`` make it; ``register`` stores it.

    ``parts``: calls and other canvases. ``description``: text for lists; that of a part is not used.
    """

    kind: Literal["chain", "group"]
    parts: tuple[BoundJob | Canvas, ...]
    description: str = ""

    def __post_init__(self) -> None:
        parts: tuple[object, ...] = self.parts
        for part in parts:
            if not isinstance(part, BoundJob | Canvas):
                cure = f": write {part.__name__}.bind(…)" if isinstance(part, JobDefinition) else ""
                raise InvalidJob(f"a {self.kind} takes calls, made by a definition's bind(…), not {part!r}{cure}")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            from django_pgjobs.values.cures import cure  # here for start-up time

            what = f"a canvas has no {name}"
            raise AttributeError(f"{what}(): {found}" if (found := cure("canvas", name)) else what, name=name, obj=self)

    def register(self) -> Job:
        """Store all calls as one flow, in the caller's transaction, and return the flow's job.

        Each further call stores another flow. Raises what ``Flow.register`` raises; then nothing is stored.
        """
        flow = Flow(self.description)
        self._add_to(flow, ())
        return flow.register()

    aregister = asynchronous(register)

    def _add_to(self, flow: Flow, after: Sequence[Node]) -> Sequence[Node]:
        """Add the calls to a flow, after these nodes; return its own last ones."""
        ends: Sequence[Node] = ()
        for part in self.parts:
            added = [flow.add(part, after)] if isinstance(part, BoundJob) else part._add_to(flow, after)
            if self.kind == "group":
                ends = [*ends, *added]
            elif added:
                ends = after = added
        return ends


def _flat(kind: str, parts: Iterable[BoundJob | Canvas]) -> tuple[BoundJob | Canvas, ...]:
    # Calls that a loop adds one by one, as in steps = chain(steps, call), would nest deeper than Python can recurse.
    nested = ((part.parts if isinstance(part, Canvas) and part.kind == kind else (part,)) for part in parts)
    return tuple(chained.from_iterable(nested))


def chain(*calls: BoundJob | Canvas, description: str = "") -> Canvas:
    """Return calls that run one after the other, each if what comes before it has succeeded. Raises ``InvalidJob``."""
    return Canvas("chain", _flat("chain", calls), description)


def group(calls: Iterable[BoundJob | Canvas], description: str = "") -> Canvas:
    """Return calls that run side by side. For more than some thousands use ``Batch``. Raises ``InvalidJob``."""
    if isinstance(calls, Canvas):
        raise InvalidJob(f"pass a list of calls, not a {calls.kind} alone: put it into a list")
    return Canvas("group", _flat("group", checked_calls(calls)), description)


def chord(calls: Iterable[BoundJob | Canvas], then: BoundJob | Canvas, description: str = "") -> Canvas:
    """Return calls that run side by side, and one that runs when all of them have succeeded: a chain of both.

    Raises ``InvalidJob``.
    """
    return chain(group(calls), then, description=description)
