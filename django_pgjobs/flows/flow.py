"""``Flow``: jobs that need each other, registered as one."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

from django.db import connections

from django_pgjobs.durable import provide_gather
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.flows.builtin import FLOW, checked_undo, holder, new_job_of, own_call, with_undo
from django_pgjobs.flows.builtin import flow as flow_job
from django_pgjobs.jobs.definition import BoundJob, Returned
from django_pgjobs.middleware import registering
from django_pgjobs.serialization.references import ResultOf, within
from django_pgjobs.states import FlowFlag as Bits
from django_pgjobs.states import Rule
from django_pgjobs.values.asynchronous import asynchronous

if TYPE_CHECKING:
    from django_pgjobs.jobs.definition import V
    from django_pgjobs.middleware import Registration
    from django_pgjobs.models import Job
    from django_pgjobs.store.new_jobs import NewJob

When = Literal["succeeded", "settled", "failed"]

KEPT_OUT = {"key": "the flow may have one", "after": "say what it needs in add()", "bypass": "it is stored"}
"""Options that a node may not have, and why."""


class Node(Generic[Returned]):
    """One call of a flow. ``job_id``: the id of its job, once the flow is registered."""

    def __init__(self, flow: Flow, number: int, call: BoundJob, needs: dict[Node, Rule]) -> None:
        self.flow = flow
        self.number = number
        self.call = call
        self.needs = needs
        self.job_id: int | None = None
        self._result = ResultOf()

    def __repr__(self) -> str:
        return f"<Node {self.number} {self.call.name}>"

    @property
    def result(self) -> Returned:
        """The value that its function will return, as an argument for nodes of the same flow, which then need it to
        succeed.

        Type checkers take it for that; at run time it stands for it, and only ``bind`` can use it.

        Null for a function that returns nothing. Raises ``InvalidJob`` if the job is declared with
        ``store_result=False``.
        """
        if not self.call.definition.store_result:
            raise InvalidJob(f"node {self.number}: job {self.call.name!r} stores no result (store_result=False)")
        return cast("Returned", self._result)


class Flow:
    """Jobs that need each other, its *nodes*. ``register()`` stores them all, in the caller's transaction.

    A flow is a job, as a batch is: its nodes are its members, and it ends when all of them have ended; as succeeded if
    nothing went wrong. A node that is not needed, such as one for a failure that did not happen, does no harm.

    ``undo``: if the flow is abandoned or cancelled, the nodes that succeeded are undone, the latest first, by the
    ``undo`` of their definitions; ``undo_on_failure``: what happens if one cannot be undone.
    ``description``: text for lists. ``key``: as of a job; if an unfinished flow has it, ``register`` returns that one.
    ``queue``, ``priority``: of the flow's own row. ``database``: an alias; all nodes go there.

    Raises ``InvalidJob`` for invalid values.
    """

    def __init__(
        self,
        description: str = "",
        *,
        undo: bool = False,
        undo_on_failure: Literal["go_on", "stop"] = "go_on",
        key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        database: str | None = None,
    ) -> None:
        self._undo = checked_undo(undo, undo_on_failure)
        self._call = own_call(
            flow_job, description=description, queue=queue, priority=priority, unique=key, database=database
        )
        self.nodes: list[Node] = []
        self._by_result: dict[int, Node] = {}
        self._registered = False

    if TYPE_CHECKING:

        @overload
        def add(
            self, call: BoundJob[Coroutine[Any, Any, V]], after: Node | Iterable[Node] = (), *, when: When = "succeeded"
        ) -> Node[V]: ...
        @overload
        def add(self, call: BoundJob[V], after: Node | Iterable[Node] = (), *, when: When = "succeeded") -> Node[V]: ...

    def add(
        self,
        call: BoundJob,
        after: Node | Iterable[Node] = (),
        *,
        when: When = "succeeded",
    ) -> Node:
        """Add a call, made by ``bind(…)``, and return its node.

        ``after``: nodes of this flow that it needs; ``when``: which end of each. A node whose ``result`` is among the
        arguments is needed, too, and has to succeed. Raises ``InvalidJob``.
        """
        number = len(self.nodes)
        if self._registered:
            raise InvalidJob(f"node {number}: the flow is registered and takes no more nodes")
        if not isinstance(call, BoundJob):
            raise InvalidJob(f"node {number}: a flow takes calls, made by a definition's bind(…), not {call!r}")
        conf = self._call._row().plan.conf
        if number >= conf.bounds.nodes:
            raise InvalidJob(f"a flow has at most {conf.bounds.nodes} nodes (BOUNDS['nodes'])")
        if when not in list(Rule):
            raise InvalidJob(f"node {number}: when must be {', '.join(repr(str(rule)) for rule in Rule)}, not {when!r}")
        for option, why in KEPT_OUT.items():
            if call.options.get(option):
                raise InvalidJob(f"node {number}: job {call.name!r}: a node takes no {option}: {why}")
        needs = dict.fromkeys(self._own(number, after), Rule(when))
        if Rule(when) is Rule.FAILED and not needs:
            raise InvalidJob(f"node {number}: when='failed' without after: say whose failure it needs")
        needs |= dict.fromkeys(self._sources(number, call), Rule.SUCCEEDED)
        if len(needs) > conf.bounds.needs:
            raise InvalidJob(
                f"node {number} needs {len(needs)} others, and at most {conf.bounds.needs} (BOUNDS['needs'])"
            )
        node = Node(self, number, call, needs)
        self.nodes.append(node)
        self._by_result[id(node._result)] = node
        return node

    def _own(self, number: int, after: Node | Iterable[Node]) -> list[Node]:
        nodes: list[Any] = [after] if isinstance(after, Node) else list(after)
        for node in nodes:
            if not isinstance(node, Node) or node.flow is not self:
                raise InvalidJob(f"node {number}: after takes nodes of this flow, not {node!r}")
        return nodes

    def _sources(self, number: int, call: BoundJob) -> list[Node]:
        found = [id(each) for each in within([*call.args, *call.kwargs.values()])]
        if strange := [each for each in found if each not in self._by_result]:
            raise InvalidJob(f"node {number}: {len(strange)} of its arguments are results of another flow's nodes")
        return [self._by_result[each] for each in found]

    def register(self) -> Job:
        """Store the flow and all its nodes, in the caller's transaction, and return its own job.

        If its key is taken, return the flow that has it. Raises ``OldWorkers`` and what registering the nodes raises,
        naming the node; then nothing is stored, and an open transaction stays usable. Only once: after a rollback make
        a new flow.
        """
        with registering(FLOW, self._call._row().plan.queue) as registration:
            return self._register(registration)

    def _register(self, registration: Registration | None) -> Job:
        from django_pgjobs.registering import register, waiting  # here for start-up time
        from django_pgjobs.registering.destination import check_members, writable_alias  # here for start-up time
        from django_pgjobs.store import waking  # here for start-up time
        from django_pgjobs.store.copying import reserve_ids  # here for start-up time
        from django_pgjobs.store.new_jobs import NewJobs  # here for start-up time

        if self._registered:
            raise InvalidJob("the flow is registered already")
        plan = self._call._row().plan
        flow = with_undo(new_job_of(self._call, plan.database), self._undo)
        using = writable_alias(plan.database, [NewJobs.of(flow)])
        for node, job_id in zip(self.nodes, reserve_ids(using, len(self.nodes)) if self.nodes else (), strict=True):
            node.job_id = node._result.job_id = job_id
        try:
            nodes = self._new_nodes(using)
            if plan.database is None:
                check_members(using, map(NewJobs.of, nodes))
            with register.passing(connections[using], plan.conf, [node.queue for node in nodes]):
                flow_id, is_new = waiting.insert_flow(using, flow, nodes, plan.conf)
        except BaseException:
            self._unnumber()
            raise
        finally:
            for node in self.nodes:
                node._result.job_id = None  # no other registration takes it
        if registration is not None:
            registration.count, registration.job = (1 + len(nodes) if is_new else 0), flow_id
        if is_new:
            self._registered = True
            waking.registered(connections[using], {node.wakes for node in nodes if not node.waits}, plan.conf)
            definitions = [node.call.definition for node in self.nodes]
            register.announce(using, definitions, [node._replace(parent_id=flow_id) for node in nodes])
        else:
            self._unnumber()
        stored = holder(using, flow_id, FLOW)
        return register.as_fresh(stored) if is_new else stored

    aregister = asynchronous(register)

    def _unnumber(self) -> None:
        for node in self.nodes:
            node.job_id = None

    def _new_nodes(self, using: str) -> list[NewJob]:
        needed = {other for node in self.nodes for other in node.needs}
        return [self._new_node(node, using, is_needed=node in needed) for node in self.nodes]

    def _new_node(self, node: Node, using: str, *, is_needed: bool) -> NewJob:
        try:
            new = new_job_of(node.call, using)
        except InvalidJob as error:
            raise InvalidJob(f"node {node.number}: {error}") from None
        if new.key is not None:
            raise InvalidJob(f"node {node.number}: job {new.name!r} declares a key: pass using(unique=None)")
        refers = any(True for _ in within([*node.call.args, *node.call.kwargs.values()]))
        return new._replace(
            id=node.job_id,
            flow=(Bits.NEEDED if is_needed else 0) | (Bits.GATED if node.needs else 0),
            waits=bool(node.needs),
            needs=tuple((other.job_id or 0, rule) for other, rule in node.needs.items()),
            options={**(new.options or {}), "results": True} if refers else new.options,
        )


def _gather(*given: Any, **options: Any) -> list[object]:
    from django_pgjobs.flows.gathering import gather  # here for start-up time

    return gather(*given, **options)


provide_gather(_gather)
