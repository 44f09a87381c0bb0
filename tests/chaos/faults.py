"""What the nemesis can do, and the seeded order in which it does it. Three lanes run at once, so faults combine.

A *step* is chosen before anything happens: kind, target, seconds, and the pause before it. The same seed gives the
same steps, whatever the machine makes of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

LEASE_SECONDS = 1.5

PROCESSES = {
    "kill supervisor": 4,
    "kill executor": 5,
    "kill template": 2,
    "kill worker": 3,
    "kill everything": 1,
    "freeze supervisor": 3,
    "freeze executor": 2,
    "freeze template": 1,
    "freeze worker": 3,
    "drain and replace": 3,
    "hurry": 1,
}
WAYS = {
    "terminate some": 4,
    "terminate all": 1,
    "cut": 5,
    "partition": 5,
    "blackhole": 3,
    "delay": 2,
    "throttle": 2,
    "refuse": 2,
    "lose reply": 6,
    "lose request": 3,
    "restart": 1,
    "crash": 2,
}
OPERATORS = {
    "cancel": 5,
    "retry": 4,
    "retry members": 2,
    "release": 2,
    "unblock": 1,
    "reschedule": 2,
    "abandon": 1,
    "send": 2,
    "pause": 1,
    "prune": 1,
    "bulk": 1,
    "own": 10,
    "forge": 4,
    "lock row": 2,
    "lock table": 1,
}

LANES = {"processes": PROCESSES, "ways": WAYS, "operators": OPERATORS}
PAUSES = {"processes": (1.0, 7.0), "ways": (0.5, 6.0), "operators": (0.1, 1.5)}

MATCHES = ("", " finalise$", " claim$", " keep$", " maintenance$", " listen$", "^pgjobs [0-9a-f]{16}-")
STATEMENTS = (
    "claim_jobs", "finalise_success_fast", "finalise_retry", "finalise_end", "finalise_snooze", "release_jobs",
    "mark_ending", "renew_claims", "rescue_jobs", "delete_claims", "read_flags", "suspend_jobs", "write_memo",
    "begin_gather", "finish_wait", "settle_ends", "open_gates", "send_event", "register_servants", "mend_undoing",
    "write_cursor",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One fault: after ``pause`` seconds, for ``seconds``; ``target`` and ``dice`` choose among what is there."""

    number: int
    lane: str
    kind: str
    pause: float
    seconds: float
    target: int
    dice: float
    match: str
    statement: str

    def __str__(self) -> str:
        return f"{self.lane} #{self.number} {self.kind} target={self.target} for {self.seconds:.2f} s"


def steps(seed: int, lane: str) -> Iterator[Step]:
    """Yield the steps of a lane for ever."""
    chance = random.Random(f"{seed} {lane}")
    kinds = LANES[lane]
    number = 0
    while True:
        number += 1
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        pause = chance.uniform(*PAUSES[lane])
        seconds = chance.uniform(0.1, 2.5 * LEASE_SECONDS)
        target, dice = chance.randrange(1000), chance.random()
        yield Step(number, lane, kind, pause, seconds, target, dice, chance.choice(MATCHES), chance.choice(STATEMENTS))
