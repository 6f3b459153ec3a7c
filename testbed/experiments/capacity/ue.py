"""Model-free traffic: a drafter and a verifier whose tokens agree as often as they are told to.

The language is trivial, one sequence of tokens for everybody; what matters is which drafted tokens are accepted. That
is drawn for each UE as it drafts, with what an imperfect predictor would say of each token.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.clock import Clock
from testbed.experiments.capacity.systems import FIXED, LEFT_OUT, NONE, CapacityConfig
from testbed.ue.drafters.base import Choose, DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy, check_window
from testbed.ue.windows.predictor import PredictorInfo, RejectionPredictor
from testbed.ue.windows.registry import window_policy

VOCAB = 512
MOST_POSITIONS = 2**16
LANGUAGE: NDArray[np.int32] = (np.arange(MOST_POSITIONS) % VOCAB).astype(np.int32)
"""What the target says, by position: any prefix of it is a prompt."""
SYNTHETIC = "synthetic-traffic"
"""Stands for the drafter's fingerprint."""


@functools.cache
def _token(position: int, right: bool, liked: bool) -> DraftToken:
    """`top1` says whether the predictor predicts acceptance; the other statistics say nothing."""
    target = int(LANGUAGE[position])
    hidden = np.zeros(1, np.float16)
    return DraftToken(target if right else (target + 1) % VOCAB, float(liked), 0.0, 0.0, 0.0, hidden)


class Chance:
    """What becomes of one UE's drafted tokens.

    A token is accepted with probability α. The predictor says so of an accepted one with probability `tpr`, of the
    first that is not with `fpr`, and of those after it with `after`.
    """

    def __init__(self, config: CapacityConfig, seed: int) -> None:
        self._alpha = config.acceptance
        self._tpr, self._fpr, self._after = config.tpr, config.fpr, config.after
        self._random = random.Random(seed)
        self._rejected = False
        self._next: tuple[bool, bool] | None = None
        self._first = True
        self.blank = False
        """Whether a window whose first token is doubted holds nothing: that token stands in for an empty window, which
        the wire does not know, and is never the target's."""

    def begin(self) -> None:
        """A new window."""
        self._rejected, self._next, self._first = False, None, True

    def peek(self) -> tuple[bool, bool]:
        """Whether the next token is the target's, and whether it is predicted accepted."""
        if self._next is None:
            right = self._random.random() < self._alpha
            chance = self._after if self._rejected else self._tpr if right else self._fpr
            self._next = right, self._random.random() < chance
            self._rejected = self._rejected or not right
        return self._next

    def draw(self) -> tuple[bool, bool]:
        """The same, and on to the one after it."""
        right, liked = self.peek()
        blank = self.blank and self._first and not liked
        self._next, self._first = None, False
        return right and not blank, liked


class TrafficDrafter:
    """Implements `Drafter` for one UE; one sequence at a time."""

    vocab_size, hidden_size, context, fingerprint = VOCAB, 1, MOST_POSITIONS, SYNTHETIC

    def __init__(self, chance: Chance) -> None:
        self.chance = chance

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> TrafficSequence:
        """See `Drafter.open`; there are no distributions."""
        return TrafficSequence(self.chance, len(prompt))

    def close(self) -> None:
        """Nothing to free."""


class TrafficSequence:
    """Implements `DraftSequence`."""

    def __init__(self, chance: Chance, length: int) -> None:
        self._chance, self._committed, self._drafted = chance, length, 0
        chance.begin()

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._committed

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        token = _token(self._committed + self._drafted, *self._chance.draw())
        self._drafted += 1
        return token

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        self._committed, self._drafted = self._committed + accepted + 1, 0
        self._chance.begin()

    def close(self) -> None:
        """Nothing to free."""


class BeforeRejection:
    """Implements `WindowPolicy`: the tokens before the first predicted rejection (WISP, eq. 25).

    The doubted token's own logits are what is doubted: it has been drafted by then, and `paid` counts it.

    Args:
        shortest: 0: a window may be empty, as in eq. 25; 1: one token at least.

    Raises:
        BadInput: K_max that is no window.
    """

    def __init__(self, chance: Chance, max_window: int, shortest: int = 0) -> None:
        check_window(max_window)
        chance.blank = shortest == 0
        self._chance, self.max_window = chance, max_window
        self.paid = 0

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """While the next one is predicted accepted."""
        if len(drafted) >= self.max_window or not drafted[0].top1:
            return False
        self.paid = int(not self._chance.peek()[1])
        return not self.paid

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def fresh(self) -> BeforeRejection:
        """Itself."""
        return self


class TrafficPace:
    """Implements `Pace`: every drafted token takes its time, the one that was left out too."""

    def __init__(self, clock: Clock, token_s: float, policy: WindowPolicy | None) -> None:
        self._clock, self._token_s, self._policy = clock, token_s, policy

    async def opened(self, prompt_len: int) -> None:
        """Prompts cost a UE nothing."""

    async def drafted(self, count: int, base_len: int) -> None:
        """A window was drafted."""
        if isinstance(self._policy, BeforeRejection):
            count, self._policy.paid = count + self._policy.paid, 0
        await self._clock.sleep(count * self._token_s)


def predictor(config: CapacityConfig) -> RejectionPredictor:
    """A predictor of what `Chance` shows: the probability that a token is accepted, given all before it are, by Bayes'
    rule from α, `tpr` and `fpr`.
    """

    def log_odds(accepted: float, rejected: float) -> float:
        alpha = min(max(config.acceptance, 1e-9), 1 - 1e-9)
        return math.log(alpha * max(accepted, 1e-9)) - math.log((1 - alpha) * max(rejected, 1e-9))

    doubted, liked = log_odds(1 - config.tpr, 1 - config.fpr), log_odds(config.tpr, config.fpr)
    info = PredictorInfo(
        model="mlp",
        form="mlp",
        drafter_fingerprint=SYNTHETIC,
        target_fingerprint=SYNTHETIC,
        recall=config.tpr,
        threshold=0.5,
        platt=(1.0, 0.0),
    )
    weights = np.array([[liked - doubted], [0.0], [0.0], [0.0], [0.0]])
    return RejectionPredictor(info, {"w0": weights, "b0": np.array([doubted])})


def policy(config: CapacityConfig, window: str, chance: Chance) -> WindowPolicy | None:
    """One UE's window rule; None: the target decodes alone."""
    if window == NONE:
        return None
    if window == LEFT_OUT:
        return BeforeRejection(chance, config.window, config.shortest)
    return window_policy(window, config.window if window == FIXED else config.gain_window, predictor(config))
