"""The room of the claim thread: what it has claimed and main has not read of is taken already."""

from __future__ import annotations

from django_pgjobs.worker.threads.claim_room import ClaimRoom
from tests.unit.worker_fakes import claimed


def test_room_that_is_offered_anew_is_less_what_main_has_not_read_of() -> None:
    """Else each claim whose message is still on its way would be made twice over."""
    room = ClaimRoom(frozenset({"room.loop"}))
    jobs = [claimed(1), claimed(2), claimed(3, name="room.loop")]
    room.offer(4, 2, 10)
    room.took(jobs)
    assert (room.wanted, room.most) == ({False: 2, True: 1}, 7)
    room.offer(4, 2, 10)
    assert (room.wanted, room.most) == ({False: 2, True: 1}, 7)
    room.adopted(jobs)
    room.offer(2, 1, 7)
    assert (room.wanted, room.most) == ({False: 2, True: 1}, 7)
