"""Settings of relabelling (WISV Section V-B) and of training (Section V-A)."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from testbed import fields
from testbed.channel.csi import FEATURES, Csi, QualityKind
from testbed.config import Config
from testbed.errors import BadInput
from testbed.options import option
from testbed.protocols.quantise import FULL_BITS, check_bits

Quality = Annotated[
    QualityKind,
    option("Channel quality q: goodput (uplink rate and PER, as in WISV) or goodput-rtt (extension: RTT counts half)."),
]


class Relabelling(Config, frozen=True, kw_only=True):
    """Settings of relabelling. The paper gives none of these values.

    Raises:
        BadInput: a value out of range.
    """

    draws: Annotated[int, option("Channel states per episode.", least=1, panel="Relabelling")] = 4
    seed: Annotated[int, option("Seed of channel states and actions.", least=0)] = 0
    tau: Annotated[float, option("τ_s, decay length of importance, in mismatches.", above=0)] = 2.0
    temperature: Annotated[float, option("T, temperature of the policy, in units of importance.", above=0)] = 0.25
    least_share: Annotated[
        float, option("Share of an episode's critical mismatches repaired at channel quality 0.", least=0, most=1)
    ] = 0.25
    full_quality: Annotated[
        float,
        option("Channel quality from which all are repaired; below, the share falls linearly.", above=0, most=1),
    ] = 0.6
    """The default lies between the qualities of 20 and 500 Mbit/s, by either quality."""
    quality: Quality = "goodput"
    rate_mbps: Annotated[
        tuple[float, float],
        option("Range of up- and downlink rates, each drawn log-uniformly.", unit="Mbit/s", panel="Channels"),
    ] = (5.0, 1000.0)
    rtt_ms: Annotated[tuple[float, float], option("Range of RTTs, drawn log-uniformly.", unit="ms")] = (1.0, 200.0)
    per: Annotated[
        tuple[float, float], option("Range of up- and downlink packet error rates, each drawn uniformly.")
    ] = (0.0, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in {"rates": self.rate_mbps, "RTTs": self.rtt_ms}.items():
            _require(0 < low <= high < math.inf, f"{name} must range from above 0 upwards, not {low:g} to {high:g}")
        low, high = self.per
        _require(0 <= low <= high < 1, f"packet error rates must range within [0, 1), not {low:g} to {high:g}")

    def share(self, quality: float) -> float:
        """Share of an episode's critical mismatches within the budget at channel quality q; non-decreasing in q."""
        return self.least_share + (1 - self.least_share) * min(1.0, quality / self.full_quality)

    def draw(self, rng: np.random.Generator) -> Csi:
        """Draw a channel state."""

        def log_uniform(low: float, high: float) -> float:
            return float(low * (high / low) ** rng.random())

        up, down, rtt_ms = (log_uniform(*span) for span in (self.rate_mbps, self.rate_mbps, self.rtt_ms))
        per_up, per_down = rng.uniform(*self.per, 2).tolist()
        return Csi(up, down, rtt_ms, per_up, per_down)


class Training(Config, frozen=True, kw_only=True):
    """Settings of training.

    Raises:
        BadInput: a value out of range.
    """

    width: Annotated[int, option("Units of the hidden layer.", least=1, panel="Training")] = 64
    dropout: Annotated[float, option("Share of hidden units left out in training.", least=0, below=1)] = 0.3
    learning_rate: Annotated[float, option("Learning rate of AdamW.", above=0)] = 1e-3
    weight_decay: Annotated[float, option("Weight decay of AdamW.", least=0)] = 0.05
    batch: Annotated[int, option("Instances per step.", least=1)] = 256
    epochs: Annotated[int, option("Maximum number of epochs.", least=1)] = 60
    patience: Annotated[int, option("Epochs without a lower held-out loss after which training ends.", least=1)] = 8
    held_out: Annotated[float, option("Share of prompts for early stopping and calibration.", above=0, below=1)] = 0.2
    seed: Annotated[int, option("Seed of channel states, actions, held-out prompts and weights.", least=0)] = 0
    balanced: Annotated[bool, option("Weigh both classes equally in the loss.")] = True
    features: tuple[str, ...] = FEATURES
    """Channel features; () trains a head that does not see the channel."""
    hidden_bits: Annotated[int, option("Bits per element at which drafter states arrive: 16, 8 or 4.", unit="bits")] = (
        FULL_BITS
    )
    states: fields.States = "predicting"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.hidden_bits)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BadInput(message)
