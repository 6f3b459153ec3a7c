"""Window hints of tests."""

from __future__ import annotations

import random
from typing import Any

from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.optim.pass_time import NO_OVERHEAD, PassOverhead
from testbed.protocols import PROTOCOLS
from testbed.protocols.messages import NO_HINT


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


class RandomHints(Unlearning):
    """Hints of windows, protocols and lookahead at random, after half of the rounds. Windows of 0 are among them, but
    for UEs that draw tokens themselves, which no base station leaves out.
    """

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        dice, protocol = self._dice, session.protocol
        if not session.hinted or protocol is None or dice.random() < 0.5:
            return Hint()
        kinds = [protocol.kind, PROTOCOLS[protocol.kind].beside] if session.protocol_hints else [""]
        ahead = dice.choice([0, 1]) if session.lookahead_hints else NO_HINT
        least = int(protocol.replaces)
        return Hint(dice.choice([least, dice.randint(least, session.hinted)]), dice.choice(kinds), ahead)
