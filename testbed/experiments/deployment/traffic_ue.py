"""Synthetic traffic without models: a drafter with a given acceptance rate, and an imperfect rejection predictor.

The target's output is the same fixed sequence for all UEs; whether a drafted token is accepted, and what the predictor
says of it, is drawn at random while a UE drafts.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.ue.drafters.base import Choose, DraftToken
from testbed.ue.windows.base import WindowPolicy, WindowRule
from testbed.ue.windows.predicted import PredictedWindow
from testbed.ue.windows.predictor import PredictorInfo, RejectionPredictor

VOCAB = 512
MOST_POSITIONS = 2**16
LANGUAGE: NDArray[np.int32] = (np.arange(MOST_POSITIONS) % VOCAB).astype(np.int32)
"""Target tokens by position; every prefix is a prompt."""
SYNTHETIC = "synthetic-traffic"
"""Fingerprint of the drafter."""


@functools.cache
def _token(position: int, right: bool, liked: bool) -> DraftToken:
    """`top1` is 1 if the predictor predicts acceptance, else 0; the other statistics are not used."""
    target = int(LANGUAGE[position])
    hidden = np.zeros(1, np.float16)
    return DraftToken(target if right else (target + 1) % VOCAB, float(liked), 0.0, 0.0, 0.0, hidden)


@functools.lru_cache(maxsize=4 * VOCAB)
def _distribution(target: int, alpha: float) -> NDArray[np.float32]:
    """α on the target's token, the rest on the next one."""
    probs = np.zeros(VOCAB, np.float32)
    probs[target], probs[(target + 1) % VOCAB] = alpha, 1 - alpha
    return probs


@dataclass(frozen=True)
class DraftChances:
    """Chances of one UE's drafts; the predictor's are those of WISP's Table 4."""

    acceptance: float = 0.758
    """α: acceptance rate of each drafted token, given that all before it were accepted."""
    tpr: float = 0.80
    """Share of accepted tokens that the predictor predicts accepted."""
    fpr: float = 0.425
    """Share of first rejections that it predicts accepted."""
    after: float = 0.85
    """Share of tokens after a rejection that it predicts accepted."""
    calibration_bias: float = 0.0
    """Error of its log-odds."""


class Chance:
    """Random acceptance of one UE's drafted tokens, and what the predictor says of them.

    A token is accepted with probability α. The predictor predicts acceptance with probability `tpr` for an accepted
    token, `fpr` for the first rejected one, and `after` for those behind it.

    Args:
        agrees: whether the token at a position is the target's; None: drawn anew for every drafted token.
    """

    def __init__(self, chances: DraftChances, seed: int, agrees: Callable[[int], bool] | None = None) -> None:
        self._agrees = agrees
        self._alpha = chances.acceptance
        self._tpr, self._fpr, self._after = chances.tpr, chances.fpr, chances.after
        self._random = random.Random(seed)
        self._rejected = False

    def begin(self) -> None:
        """Start a window."""
        self._rejected = False

    def probs(self, position: int) -> NDArray[np.float32]:
        """[VOCAB] draft distribution at a position, which overlaps the target's by α."""
        return _distribution(position % VOCAB, self._alpha)

    def draw(self, choose: Choose | None = None, position: int = 0) -> tuple[bool, bool]:
        """Whether the next token is the target's, and whether the predictor predicts acceptance.

        Args:
            choose: draws the token from the distribution at `position`; None: it is right with probability α.
        """
        if choose is not None:
            right = choose(self.probs(position), position) == int(LANGUAGE[position])
        elif self._agrees is not None:
            right = self._agrees(position)
        else:
            right = self._random.random() < self._alpha
        chance = self._after if self._rejected else self._tpr if right else self._fpr
        self._rejected = self._rejected or not right
        return right, self._random.random() < chance


class TrafficDrafter:
    """Implements `Drafter` for one UE; one sequence at a time."""

    vocab_size, hidden_size, context, fingerprint = VOCAB, 1, MOST_POSITIONS, SYNTHETIC

    def __init__(self, chance: Chance) -> None:
        self.chance = chance

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> TrafficSequence:
        """See `Drafter.open`; tokens come without distributions."""
        return TrafficSequence(self.chance, len(prompt), choose)

    def close(self) -> None:
        """Nothing to free."""


class TrafficSequence:
    """Implements `DraftSequence`."""

    def __init__(self, chance: Chance, length: int, choose: Choose | None = None) -> None:
        self._chance, self._committed, self._drafted, self._choose = chance, length, 0, choose
        chance.begin()

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._committed

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        position = self._committed + self._drafted
        token = _token(position, *self._chance.draw(self._choose, position))
        self._drafted += 1
        return token

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        self._committed, self._drafted = self._committed + accepted + 1, 0
        self._chance.begin()

    def close(self) -> None:
        """Nothing to free."""


def predictor(chances: DraftChances) -> RejectionPredictor:
    """A rejection predictor for `Chance`: the probability that a token is accepted if all before it are, by Bayes' rule
    from α, `tpr` and `fpr`, with an error of the log-odds; its threshold tells doubted tokens from the others.
    """
    bias = chances.calibration_bias

    def log_odds(accepted: float, rejected: float) -> float:
        alpha = min(max(chances.acceptance, 1e-9), 1 - 1e-9)
        return math.log(alpha * max(accepted, 1e-9)) - math.log((1 - alpha) * max(rejected, 1e-9))

    doubted, liked = log_odds(1 - chances.tpr, 1 - chances.fpr), log_odds(chances.tpr, chances.fpr)
    info = PredictorInfo(
        model="mlp",
        form="mlp",
        drafter_fingerprint=SYNTHETIC,
        target_fingerprint=SYNTHETIC,
        recall=chances.tpr,
        threshold=1 / (1 + math.exp(-(doubted + liked) / 2 - bias)),
        platt=(1.0, bias),
    )
    weights = np.array([[liked - doubted], [0.0], [0.0], [0.0], [0.0]])
    return RejectionPredictor(info, {"w0": weights, "b0": np.array([doubted])})


def policy(chances: DraftChances, rule: WindowRule, window: int, shortest: Literal[0, 1] = 0) -> WindowPolicy:
    """A UE's window policy.

    Args:
        window: most tokens of a round.
        shortest: smallest predicted window.
    """
    known = predictor(chances)
    if rule.withholds:
        return PredictedWindow(known, known.info.threshold, window, before=True, least=shortest)
    return rule.make(window, known)
