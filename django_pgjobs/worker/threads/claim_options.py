"""What every claim of a worker says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """What every claim of this worker says. Seconds; ``grace`` is how long others wait after a passed deadline."""

    worker: UUID
    lease_seconds: float
    allowance_seconds: float
    grace_seconds: float
    poll_seconds: float
    notify: bool
    until_idle: bool = False

    def terms(self, claim_id: UUID) -> dict[str, Any]:
        """Return what the statement of one claim gets."""
        return {
            "claim_id": claim_id,
            "worker": self.worker,
            "lease_seconds": self.lease_seconds,
            "allowance_seconds": self.allowance_seconds,
            "grace_seconds": self.grace_seconds,
        }
