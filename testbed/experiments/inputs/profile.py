"""Device profiles: drafting and verification times of other hardware, and the payload sizes of its models.

A profile is a YAML file (`hardware/profiles/`); virtual runs use its compute times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from testbed.assets.bundled_files import find
from testbed.channel.cost import Overheads, Sizes, id_bits
from testbed.channel.csi import FEATURES
from testbed.config import Config, load
from testbed.errors import BadInput
from testbed.optim.inference_cost import forward_flops
from testbed.optim.pass_time import Coefficients


class PassWork(NamedTuple):
    """One request's share of a verification pass."""

    drafted: int
    """K"""
    new: int
    """Tokens that the pass computes: K and the uncached ones of the prefix."""
    cached: int


# ---------------------------------------------------------------- drafting


class LinearDraft(Config, frozen=True, tag="linear", tag_field="kind"):
    """A constant time for every token."""

    per_token_s: float
    base_s: float = 0.0
    """Time per window."""
    prefill_per_token_s: float = 0.0

    def window_s(self, count: int, base_len: int) -> float:
        """Drafting `count` tokens after `base_len`."""
        return self.base_s + self.per_token_s * count

    def prefill_s(self, prompt_len: int) -> float:
        """Computing a prompt."""
        return self.prefill_per_token_s * prompt_len


class FlopsDraft(Config, frozen=True, tag="flops", tag_field="kind"):
    """c1·F + c2 for every forward pass of one task (edge SD batching, eqs. 13, 17, 19)."""

    layers: int
    hidden: int
    ffn: int
    c1_s: float
    """Seconds a FLOP."""
    c2_s: float

    def window_s(self, count: int, base_len: int) -> float:
        """Drafting `count` tokens after `base_len`."""
        flops = sum(forward_flops(self.layers, self.hidden, self.ffn, 1, base_len - 1 + i) for i in range(count))
        return self.c1_s * flops + self.c2_s * count

    def prefill_s(self, prompt_len: int) -> float:
        """Computing a prompt (eq. 11)."""
        return self.c1_s * forward_flops(self.layers, self.hidden, self.ffn, prompt_len, 0) + self.c2_s


class RooflineDraft(Config, frozen=True, tag="utilisation", tag_field="kind"):
    """FLOPs over the effective throughput η·F_peak (WISV eqs. 11–14)."""

    layers: int
    hidden: int
    ffn: int
    peak_flops: float
    """FLOPs a second."""
    utilisation: float
    vocab_size: int = 0
    """Rows of the output head (eq. 13); 0: left out."""

    def window_s(self, count: int, base_len: int) -> float:
        """Drafting `count` tokens after `base_len` (eqs. 12, 14)."""
        flops = sum(forward_flops(self.layers, self.hidden, self.ffn, 1, base_len - 1 + i) for i in range(count))
        return (flops + 2 * count * self.hidden * self.vocab_size) / (self.peak_flops * self.utilisation)

    def prefill_s(self, prompt_len: int) -> float:
        """Computing a prompt."""
        return forward_flops(self.layers, self.hidden, self.ffn, prompt_len, 0) / (self.peak_flops * self.utilisation)


DraftCost = LinearDraft | FlopsDraft | RooflineDraft

# ---------------------------------------------------------------- verifying


class LinearVerify(Config, frozen=True, tag="linear", tag_field="kind"):
    """Linear in the number of tokens, and at least as long as reading the weights takes."""

    base_s: float
    per_drafted_s: float = 0.0
    per_new_s: float = 0.0
    undrafted_s: float = 0.0
    """Time for a request without a draft, when the target decodes alone."""
    least_s: float = 0.0
    """Shortest pass: the time of reading the weights."""

    def pass_s(self, batch: Sequence[PassWork]) -> float:
        """One pass over a batch."""
        drafted_s = sum(self.per_drafted_s * w.drafted + self.per_new_s * w.new for w in batch)
        return max(self.least_s, self.base_s + drafted_s + self.undrafted_s * sum(not w.drafted for w in batch))


class FlopsVerify(Config, frozen=True, tag="flops", tag_field="kind"):
    """c1·ΣF + c2 (edge SD batching, eqs. 14, 17, 18), with F of each task, since requests differ."""

    layers: int
    hidden: int
    ffn: int
    c1_s: float
    """Seconds a FLOP."""
    c2_s: float

    def pass_s(self, batch: Sequence[PassWork]) -> float:
        """One pass over a batch."""
        flops = sum(forward_flops(self.layers, self.hidden, self.ffn, w.new, w.cached) for w in batch)
        return self.c1_s * flops + self.c2_s


class RooflineVerify(Config, frozen=True, tag="utilisation", tag_field="kind"):
    """FLOPs over the effective throughput η·F_peak (WISV eqs. 11, 15, 16)."""

    layers: int
    hidden: int
    ffn: int
    peak_flops: float
    """FLOPs a second."""
    utilisation: float
    vocab_size: int = 0
    """Rows of the output head (eq. 13); 0: left out."""

    def pass_s(self, batch: Sequence[PassWork]) -> float:
        """One pass over a batch."""
        flops = sum(forward_flops(self.layers, self.hidden, self.ffn, w.new, w.cached) for w in batch)
        heads = 2 * self.hidden * self.vocab_size * sum(w.drafted + 1 for w in batch)
        return (flops + heads) / (self.peak_flops * self.utilisation)


class InteractionVerify(Config, frozen=True, tag="interactions", tag_field="kind"):
    """a·N_linear + b_compute·N_interactions + b_read·N_cached + c (WISP eqs. 18, 19)."""

    a_s: float
    """Seconds a new token."""
    b_compute_s: float
    """Seconds a query-key interaction."""
    b_read_s: float
    """Seconds a cached token."""
    c_s: float

    @property
    def coefficients(self) -> Coefficients:
        """a, b_compute, b_read and c."""
        return Coefficients(self.a_s, self.b_compute_s, self.b_read_s, self.c_s)

    def pass_s(self, batch: Sequence[PassWork]) -> float:
        """One pass over a batch."""
        new = sum(w.new for w in batch)
        interactions = sum((w.cached + w.new) * w.new for w in batch)
        cached = sum(w.cached for w in batch)
        return self.a_s * new + self.b_compute_s * interactions + self.b_read_s * cached + self.c_s


VerifyCost = LinearVerify | FlopsVerify | RooflineVerify | InteractionVerify

# ---------------------------------------------------------------- judging


class HeadCost(Config, frozen=True, kw_only=True):
    """A decision head of two layers over the effective throughput η·F_peak (WISV eqs. 11, 17)."""

    drafter_hidden: int
    target_hidden: int
    channel: int = len(FEATURES)
    """Number of channel features."""
    width: int
    """Width of the hidden layer."""
    peak_flops: float
    """FLOPs a second."""
    utilisation: float

    @property
    def position_s(self) -> float:
        """Time to judge one position, at two FLOPs for every weight of both layers."""
        inputs = self.drafter_hidden + self.target_hidden + self.channel
        return 2 * (inputs * self.width + self.width) / (self.peak_flops * self.utilisation)


# ---------------------------------------------------------------- profiles


class Hot(Config, frozen=True, kw_only=True):
    """Times shortly after the same work, with warm caches and raised clock rates; matter for measured small models."""

    within_s: float
    """Maximum pause since the last work."""
    draft: LinearDraft
    verify: LinearVerify
    stack_s: float
    """One-way delay by software between processes of one host."""


class Profile(Config, frozen=True, kw_only=True):
    """Compute times of a UE and a BS.

    Raises:
        BadInput: times that are negative, not finite, or cannot be computed.
    """

    name: str
    about: str
    source: str
    """Source of the numbers."""
    assumptions: tuple[str, ...] = ()
    """Values that the source does not give."""
    draft: DraftCost
    verify: VerifyCost
    hot: Hot | None = None
    """None: the same times."""
    stack_s: float = 0.0
    """One-way delay by software, in addition to the link."""
    vocab_size: int | None = None
    """Sizes for payload accounting; None: those of the loaded models."""
    hidden_size: int | None = None
    hidden_bits: int = 16
    overhead_up_bits: int = 0
    overhead_down_bits: int = 0
    head: HeadCost | None = None
    """None: judging takes no time."""

    def __post_init__(self) -> None:
        try:
            times_s = [
                self.draft.window_s(1, 1), self.draft.prefill_s(1), self.verify.pass_s([PassWork(1, 1, 1)]),
                self.stack_s, 0.0 if self.head is None else self.head.position_s,
            ]  # fmt: skip
        except ArithmeticError as exc:  # no FLOPs a second, or numbers beyond the range of floats
            raise BadInput(f"profile {self.name}: its times cannot be computed ({exc})") from exc
        parts = (self, self.draft, self.verify, self.hot, self.head)
        numbers = [value for part in parts if part is not None for value in msgspec.structs.astuple(part)]
        if not all(math.isfinite(value) for value in (*times_s, *numbers) if isinstance(value, float)):
            raise BadInput(f"profile {self.name}: times must be finite")
        if min(times_s) < 0:
            raise BadInput(f"profile {self.name}: times must not be negative")

    @property
    def interactions(self) -> InteractionVerify:
        """Verification times of eq. 19.

        Raises:
            BadInput: the profile has another kind.
        """
        if not isinstance(self.verify, InteractionVerify):
            raise BadInput(f"profile {self.name} has no coefficients of eq. 19; use one of kind interactions")
        return self.verify

    @property
    def sizes(self) -> Sizes | None:
        """Widths of the payloads; None: those of the loaded models."""
        if self.vocab_size is None or self.hidden_size is None:
            return None
        return Sizes(self.hidden_size, id_bits(self.vocab_size), self.hidden_bits, self.vocab_size)

    @property
    def overheads(self) -> Overheads:
        """b_ul and b_dl."""
        return Overheads(self.overhead_up_bits, self.overhead_down_bits)


def load_profile(name: str) -> Profile:
    """Load a profile by name, or from a YAML file.

    Raises:
        BadInput: unknown name, or invalid values.
        ConfigError: it cannot be read.
    """
    path = find("profiles", name)
    try:
        return load(Profile, path)
    except msgspec.ValidationError as exc:
        raise BadInput(f"{path}: {exc}") from exc
