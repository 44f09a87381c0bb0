"""Requests for stacks of running jobs that executors have not answered yet. Main thread only, no I/O.

A request that is about no job of this worker any more gets no answer: its row has the claim, which shows a reader
that the attempt is over. An executor whose control thread cannot answer in time, as code in C holds the
interpreter, is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django_pgjobs.store.stacks import StackAnswer, StackRequest
from django_pgjobs.worker.shared.channel_messages import ReadStack
from django_pgjobs.worker.shared.runs import ENDING, RunTable

ANSWER_SECONDS = 3.0

StoreAnswer = Callable[[StackAnswer], None]
"""Has an answer stored, at the home of the job."""


class StackRequests:
    """Passes requests to the executors, and their answers back; ``open`` are those under way, by run."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, float, StoreAnswer]] = {}

    def ask(self, table: RunTable, requests: Sequence[StackRequest], answer: StoreAnswer, now: float) -> None:
        """Ask the executors that run these jobs; a request may be repeated while it is open."""
        for request in requests:
            run = table.held.get(request.job_id)
            if run is None or run.fence != (request.job_id, request.claim_id) or run.state == ENDING:
                continue
            if run.child is None or not run.run:
                answer(StackAnswer(request.id, "", "outside"))
            elif run.run not in self.open:
                self.open[run.run] = (request.id, now + ANSWER_SECONDS, answer)
                run.child.end.send(ReadStack(run.run))

    def taken(self, run: int, stack: str) -> None:
        """Pass on what an executor says of a run; nothing if that comes too late."""
        if run in self.open:
            request, _, answer = self.open.pop(run)
            answer(StackAnswer(request, stack, "" if stack else "outside"))

    def tick(self, now: float) -> None:
        """Give up on executors that do not answer."""
        for run, (request, until, answer) in list(self.open.items()):
            if now >= until:
                del self.open[run]
                answer(StackAnswer(request, "", "silent"))
