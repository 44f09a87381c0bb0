"""How an attempt ends, in one word that log lines and metrics share.

``succeeded``, ``abandoned`` and ``cancelled`` end the job too. After ``retried`` it runs again, and the attempt counts;
after the others it goes on or runs again, and the attempt does not count.
"""

from __future__ import annotations

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision
from django_pgjobs.states import Outcome

RETRIED = "retried"
STEPPED, SNOOZED, SUSPENDED = "stepped", "snoozed", "suspended"
PARKED, HELD, RELEASED, LOST = "parked", "held", "released", "lost"

_OUTCOMES: dict[type[object], str] = {
    decide.Succeed: Outcome.SUCCEEDED,
    decide.Next: STEPPED,
    decide.Retry: RETRIED,
    decide.Snooze: SNOOZED,
    decide.Suspend: SUSPENDED,
    decide.Abandon: Outcome.ABANDONED,
    decide.Cancel: Outcome.CANCELLED,
    decide.Park: PARKED,
    decide.Hold: HELD,
    decide.Release: RELEASED,
    decide.Lost: LOST,
}


def outcome_of(decision: Decision) -> str:
    """Return what an attempt is about to end as; one in doubt, as what it ends if its transaction has not ended it."""
    match decision:
        case decide.InDoubt(otherwise=otherwise):
            return _OUTCOMES[type(otherwise)]
        case decide.Committed(stepped=stepped):
            return STEPPED if stepped else Outcome.SUCCEEDED
        case _:
            return _OUTCOMES[type(decision)]
