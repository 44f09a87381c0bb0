"""Few statements ask for the bits of ``flow``, each for those of its own subject; all others leave them alone."""

from __future__ import annotations

import re

from django_pgjobs import sql
from django_pgjobs.states import FlowFlag as F

ENDS = {F.COUNTED}
"""May it end here and now? An end that counts is left to whoever settles it, under the lock of the row."""

BEGUN = {F.STEPPED | F.REMEMBERS}
"""Has it done anything yet? What it has done is done, so no newer registration of its key takes its place."""

STANDING = {F.YIELDS}
"""Does an abandoned job stand before others of its sequence?"""

ASKED: dict[str, set[F]] = {
    **dict.fromkeys(("finalise_end", "finalise_success", "finalise_success_fast", "finalise_success_keyed"), ENDS),
    **dict.fromkeys(("abandon_jobs", "cancel_jobs", "expire_jobs", "rescue_jobs"), ENDS),
    **dict.fromkeys(("free_keys", "postpone_jobs"), BEGUN),
    # Gates: most ends feed no link, so none is looked for.
    "list_locked_gates": {F.NEEDED},
    "settle_ends": {F.NEEDED, F.UNDOABLE},
    # Sequences.
    **dict.fromkeys(("list_held_up", "list_standing", "next_in_turn", "pass_over", "read_turn"), STANDING),
    # Undo.
    "list_undone": {F.UNDONE},
    "read_why": {F.UNDONE},
    "count_names": {F.UNDOABLE, F.STEPPED},
    # What goes with a job, and what keeps it from going.
    "prune_jobs": {F.NEEDED, F.UNDOABLE, F.GATED, F.REMEMBERS, F.YIELDS, F.UNDOING, F.COUNTED | F.GATED},
    "mark_moving": {F.REMEMBERS, F.MEMBER | F.NEEDED | F.GATED | F.UNDONE | F.UNDOING},
}
"""Statement → what it asks of ``flow``. The claim, a registration and the reading of a row ask for nothing."""

TEST = re.compile(r"\bflow & (\d+)")


def test_bits_are_asked_for_where_they_are_the_subject() -> None:
    found = {name: {F(int(bits)) for bits in TEST.findall(sql.statement(name))} for name in sql.names()}
    assert {name: bits for name, bits in found.items() if bits} == ASKED
