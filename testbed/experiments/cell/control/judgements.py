"""How the judge of a UE treats mismatches, by θ: what the controller of a cell estimates to decide thresholds."""

from __future__ import annotations

import math
from collections import defaultdict

from testbed.bs.control.messages import RoundSeen

LEVELS = (0.0, 0.25, 0.5, 1.0)
"""θ between which is decided, as shares of what the UE requested."""
FORGET = 0.99
"""Weight of the past per round."""
PRIOR = 8.0
"""Weight of what another θ suggests, in mismatches."""
START = 0.8
"""Share of the drafted tokens that are taken to be the target's before any round, with a weight of `PRIOR`."""
LEAST_REJECTED = 0.2
"""Share of rejected mismatches from which on the observed rates of positions are converted to another θ."""
MOST_THETA = 0.999
"""Largest θ whose risk is told apart."""


class Judgements:
    """Mismatches of one UE, and those of them that its judge kept, by θ."""

    def __init__(self) -> None:
        self._agreed = self._differed = 0.0
        self._seen: dict[float, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Kept and judged mismatches by θ."""

    def learn(self, seen: RoundSeen) -> None:
        """Learn from a committed round of a protocol with a judge."""
        judged = seen.kept + (seen.accepted < seen.drafted)
        self._agreed = FORGET * self._agreed + seen.accepted - seen.kept
        self._differed = FORGET * self._differed + judged
        for counts in self._seen.values():  # those of other θ, too, so that they are tried again
            counts[:] = FORGET * counts[0], FORGET * counts[1]
        counts = self._seen[seen.threshold]
        counts[:] = counts[0] + seen.kept, counts[1] + judged

    @property
    def strict(self) -> float:
        """Probability that a drafted token is the target's if all before it were accepted."""
        return (self._agreed + START * PRIOR) / (self._agreed + self._differed + PRIOR)

    def keeps(self, threshold: float) -> float:
        """Probability that a mismatch is kept at a θ; if this θ was little used, in proportion to the one most used,
        and θ itself where none was.
        """
        if threshold <= 0:
            return 0.0
        used = max(self._seen, key=lambda one: (one > 0) * self._seen[one][1], default=0.0)
        guess = min(1.0, threshold / used * self._share(used, used)) if used > 0 else threshold
        return self._share(threshold, guess)

    def _share(self, threshold: float, guess: float) -> float:
        """Share of mismatches kept at a θ, and `guess` with the weight of `PRIOR` mismatches."""
        kept, judged = self._seen.get(threshold, (0.0, 0.0))
        return (kept + PRIOR * guess) / (judged + PRIOR)

    def acceptance(self, observed: tuple[float, ...], threshold: float) -> tuple[float, ...]:
        """α by position at a θ.

        Args:
            observed: α by position under the θ of the past, whichever they were.
        """
        kept, judged = (sum(counts[i] for counts in self._seen.values()) for i in range(2))
        rejected = 1 - kept / judged if judged else 1.0
        if rejected < LEAST_REJECTED:
            strict = self.strict
            return (strict + (1 - strict) * self.keeps(threshold),) * len(observed)
        factor = (1 - self.keeps(threshold)) / rejected
        return tuple(min(1.0, max(0.0, 1 - (1 - rate) * factor)) for rate in observed)

    def risk(self, threshold: float) -> float:
        """Expected risk of a drafted token, at most −ln(1 − θ) for a mismatch that is kept."""
        return (1 - self.strict) * self.keeps(threshold) * -math.log1p(-min(threshold, MOST_THETA))
