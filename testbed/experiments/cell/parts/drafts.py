"""Drafts of the UEs of a cell: which tokens agree with the target's is the same in virtual and in real time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

from testbed.experiments.deployment.traffic_ue import Chance, DraftChances, TrafficDrafter, TrafficSequence
from testbed.ue.drafters.base import Choose
from testbed.ue.drafters.synthetic import SyntheticDrafter, SyntheticSequence

_UNIT = 2.0**-64


class Agreement:
    """Whether a drafted token is the target's: a function of seed, UE, response and position, true with probability α
    where all tokens before it are.
    """

    def __init__(self, seed: int, ue: int, alpha: float) -> None:
        self._seed, self._ue, self._alpha, self._response = seed % 2**64, ue, alpha, 0

    def begin(self) -> None:
        """The next response begins."""
        self._response += 1

    def __call__(self, position: int) -> bool:
        """Whether the token at a position of the sequence agrees."""
        packed = struct.pack("<QQQQ", self._seed, self._ue, self._response, position)
        return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") * _UNIT < self._alpha


class VirtualDrafter(TrafficDrafter):
    """Drafts of a UE in virtual time.

    Args:
        chances: of its drafts and its predictor.
        seed: seed of what the window rule's predictor says.
    """

    def __init__(self, chances: DraftChances, seed: int, agreement: Agreement) -> None:
        super().__init__(Chance(chances, seed, agreement))
        self._agreement = agreement

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> TrafficSequence:
        """See `Drafter.open`."""
        self._agreement.begin()
        return super().open(prompt, distributions=distributions, choose=choose)


class RealDrafter(SyntheticDrafter):
    """Drafts of a UE in real time, for the synthetic target."""

    def __init__(self, vocab_size: int, hidden_size: int, agreement: Agreement) -> None:
        super().__init__(vocab_size=vocab_size, alpha=1.0, hidden_size=hidden_size)
        self._agreement = agreement

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> SyntheticSequence:
        """See `Drafter.open`."""
        self._agreement.begin()
        return super().open(prompt, distributions=distributions, choose=choose)

    def agrees(self, prefix: Sequence[int]) -> bool:
        """Whether the token at this position equals the target's, see `Agreement`."""
        return self._agreement(len(prefix))
