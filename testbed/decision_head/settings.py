"""Settings of relabelling (WISV Section V-B) and of training (Section V-A)."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from testbed.channel.csi import FEATURES, Csi
from testbed.errors import BadInput
from testbed.protocols.quantise import FULL_BITS, check_bits


class Relabelling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of relabelling. The paper gives none of these values.

    Raises:
        BadInput: a value out of range.
    """

    draws: int = 4
    """Channel states per episode."""
    seed: int = 0
    tau: float = 2.0
    """τ_s, decay length of importance, in mismatches."""
    temperature: float = 0.25
    """T, temperature of the policy, in units of importance."""
    least_share: float = 0.25
    """Share of an episode's critical mismatches repaired at q = 0."""
    full_quality: float = 0.6
    """q above which all are repaired, so that labels do not change; below it the share rises linearly from q = 0.
    At 50 ms RTT, 500 Mbit/s lies above the default and 20 Mbit/s below."""
    rate_mbps: tuple[float, float] = (5.0, 1000.0)
    """Range of up- and downlink rates, drawn independently and log-uniformly."""
    rtt_ms: tuple[float, float] = (1.0, 200.0)
    """Range of RTTs, drawn log-uniformly."""
    per: tuple[float, float] = (0.0, 0.1)
    """Range of up- and downlink packet error rates, drawn independently and uniformly."""

    def __post_init__(self) -> None:
        _require(self.draws >= 1, f"draws must be at least 1, not {self.draws}")
        _require(self.seed >= 0, f"the seed must be at least 0, not {self.seed}")
        for name in ("tau", "temperature"):
            value = getattr(self, name)
            _require(0 < value < math.inf, f"{name} must be positive, not {value:g}")
        _require(0 <= self.least_share <= 1, f"the least share must lie in [0, 1], not {self.least_share:g}")
        _require(0 < self.full_quality <= 1, f"the full quality must lie in (0, 1], not {self.full_quality:g}")
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


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of training.

    Raises:
        BadInput: a value out of range.
    """

    width: int = 64
    """Width of the hidden layer."""
    dropout: float = 0.3
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    batch: int = 256
    epochs: int = 60
    """Maximum number of epochs."""
    patience: int = 8
    """Epochs without a lower held-out loss after which training stops."""
    held_out: float = 0.2
    """Share of the calibration prompts used for early stopping and for calibrating the probabilities."""
    seed: int = 0
    balanced: bool = True
    """Whether both classes have equal weight in the loss."""
    features: tuple[str, ...] = FEATURES
    """Channel features; (): the head ignores the channel."""
    hidden_bits: int = FULL_BITS
    """Bits per element of drafter states on the uplink; the head is trained on the quantised states."""

    def __post_init__(self) -> None:
        for name in ("width", "batch", "epochs", "patience"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        _require(0 <= self.dropout < 1, f"dropout must lie in [0, 1), not {self.dropout:g}")
        _require(0 < self.learning_rate < math.inf, f"the learning rate must be positive, not {self.learning_rate:g}")
        _require(0 <= self.weight_decay < math.inf, f"weight decay must be at least 0, not {self.weight_decay:g}")
        _require(0 < self.held_out < 1, f"the held-out share must lie in (0, 1), not {self.held_out:g}")
        _require(self.seed >= 0, f"the seed must be at least 0, not {self.seed}")
        check_bits(self.hidden_bits)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BadInput(message)
