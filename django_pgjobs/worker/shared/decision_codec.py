"""Decisions as they travel in DONE frames."""

from __future__ import annotations

from typing import Any, assert_never

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision, Failure, Unwritten


def pack_decision(decision: Decision) -> list[Any]:
    """Return ``decision`` as JSON values, its name first."""
    match decision:
        case decide.Succeed(result=result):
            return ["succeed", result]
        case decide.Next(name=name, columns=columns):
            return ["next", name, columns]
        case decide.Retry(seconds=seconds, failure=failure, cause=cause):
            return ["retry", seconds, _pack_failure(failure), cause]
        case decide.Snooze(seconds=seconds):
            return ["snooze", seconds]
        case decide.Suspend(failure=failure):
            return [
                "suspend", decision.memo, decision.kind, decision.seconds, decision.event, decision.failures,
                _pack_failure(failure), decision.progressed, [pack_decision(wait) for wait in decision.besides],
            ]  # fmt: skip
        case decide.Abandon(reason=reason, failure=failure, cause=cause):
            return ["abandon", reason, _pack_failure(failure), cause]
        case decide.Cancel(reason=reason, failure=failure, cause=cause):
            return ["cancel", reason, _pack_failure(failure), cause]
        case decide.Park(reason=reason, fingerprint=fingerprint):
            return ["park", reason, fingerprint]
        case decide.Hold(reason=reason):
            return ["hold", reason]
        case decide.Release(why=why, failure=failure):
            return ["release", why, _pack_failure(failure)]
        case decide.Committed(marked=marked, stepped=stepped, step_in=step_in):
            return ["committed", marked, stepped, step_in]
        case decide.Lost():
            return ["lost"]
        case decide.InDoubt(otherwise=otherwise):
            return ["in_doubt", *pack_decision(otherwise)]
        case _:
            assert_never(decision)


def unpack_decision(values: list[Any]) -> Decision:
    """Return the decision that ``pack_decision`` packed."""
    match values:
        case ["committed", marked, stepped, step_in]:
            return decide.Committed(marked, stepped, None if step_in is None else (step_in[0], step_in[1]))
        case ["lost"]:
            return decide.Lost()
        case ["in_doubt", *otherwise]:
            return decide.InDoubt(_unpack_unwritten(otherwise))
    return _unpack_unwritten(values)


def _unpack_unwritten(values: list[Any]) -> Unwritten:
    match values:
        case ["succeed", result]:
            return decide.Succeed(result)
        case ["next", name, columns]:
            return decide.Next(name, columns)
        case ["retry", seconds, failure, cause]:
            return decide.Retry(seconds, _unpack_failure(failure) or Failure("", ""), cause)
        case ["snooze", seconds]:
            return decide.Snooze(seconds)
        case ["suspend", memo, kind, seconds, event, failures, failure, progressed, besides]:
            others = tuple(wait for each in besides if isinstance(wait := _unpack_unwritten(each), decide.Suspend))
            return decide.Suspend(memo, kind, seconds, event, failures, _unpack_failure(failure), progressed, others)
        case ["abandon", reason, failure, cause]:
            return decide.Abandon(reason, _unpack_failure(failure), cause)
        case ["cancel", reason, failure, cause]:
            return decide.Cancel(reason, _unpack_failure(failure), cause)
        case ["park", reason, fingerprint]:
            return decide.Park(reason, fingerprint)
        case ["hold", reason]:
            return decide.Hold(reason)
        case ["release", why, failure]:
            return decide.Release(why, _unpack_failure(failure))
    raise ValueError(f"not a decision: {values[:1]!r}")


def _pack_failure(failure: Failure | None) -> list[Any] | None:
    return None if failure is None else [failure.kind, failure.message, failure.chain, failure.traceback]


def _unpack_failure(values: list[Any] | None) -> Failure | None:
    if values is None:
        return None
    kind, message, chain, traceback = values
    return Failure(kind, message, tuple((str(k), str(m)) for k, m in chain), traceback)
