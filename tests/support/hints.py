"""Window hints of tests."""

from __future__ import annotations

from typing import Any

from testbed.bs.sessions import Session
from testbed.optim.pass_time import NO_OVERHEAD, PassOverhead


class Unlearning:
    """All of `WindowHints` but the hints: nothing is learnt, and θ stays as requested."""

    def threshold(self, session: Session) -> float:
        return session.threshold

    def learn(self, overhead: PassOverhead = NO_OVERHEAD) -> bool:
        return False

    def ended(self, session: Session) -> None:
        pass

    def snapshot(self) -> dict[str, Any]:
        return {}
