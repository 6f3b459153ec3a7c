"""Configurations of `testbed head collect`, `head label`, `head tune` and `head compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from testbed import fields
from testbed.channel.csi import Csi
from testbed.config import Config
from testbed.decision_head.settings import Quality
from testbed.errors import BadInput
from testbed.models.bundle import head_directory
from testbed.options import option

THRESHOLDS = (2, 4, 6, 8, 11, 14, 18, 24, 32, 48, 64, 96, 128, 192, 256)
"""θ in units of 1/256."""


class EpisodeCollectConfig(Config, frozen=True):
    """Configuration of `testbed head collect`; `testbed head label` uses its engine options."""

    dataset: fields.Dataset = "bundled:calibration"
    prompts: fields.Prompts = 500
    first: fields.First = 0
    max_tokens: fields.MaxTokens = 256
    concurrency: Annotated[int, option("Prompts decoded concurrently.", panel="Workload")] = 32
    window: fields.Window = 32
    policy: Annotated[
        str,
        option(
            "Action on a mismatched token. oracle: label it at once and keep it if harmless; explore: keep it at "
            "random; strict: reject it.",
            panel="Labels",
        ),
    ] = "oracle"
    explore: Annotated[float, option("Probability that policy explore keeps a mismatch.", least=0, most=1)] = 0.7
    prompt_format: fields.PromptFormat = "auto"
    shots: fields.Shots = 0
    scorer: fields.Scorer = "number"
    seed: Annotated[int, option("Seed of policy explore.", least=0)] = 0
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    drafter: fields.DrafterFile = None
    dtype: fields.Dtype = "float32"
    kv_type: fields.KvType = "f16"
    threads: Annotated[int | None, option("CPU threads of each model. Default: all cores but one.")] = None
    gpu_layers: fields.GpuLayers = -1
    memory_share: Annotated[float, option("Share of GPU memory for vLLM; the drafter shares the GPU.")] = 0.8


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Allowed accuracy loss against target-only decoding on one channel, in percentage points."""

    rate_mbps: float
    rtt_ms: float
    points: float

    @property
    def csi(self) -> Csi:
        """Channel state information of this channel."""
        return Csi(self.rate_mbps, self.rate_mbps, self.rtt_ms, source="emulated")


class JudgedPairConfig(Config, frozen=True, kw_only=True):
    """Problems and models of a comparison of heads or of values of θ."""

    dataset: fields.Dataset = "bundled:test"
    first: fields.First = 0
    prompt_format: fields.PromptFormat = "auto"
    shots: fields.Shots = 0
    scorer: fields.Scorer = "number"
    max_tokens: fields.MaxTokens = 256
    window: fields.Window = 32
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    drafter: fields.DrafterFile = None
    tokenizer: fields.Tokenizer = None
    dtype: fields.Dtype = "float32"


class TuneConfig(JudgedPairConfig, frozen=True, kw_only=True):
    """Configuration of `testbed head tune`."""

    dataset: fields.Dataset = "bundled:calibration"
    prompts: Annotated[int, option("Problems to decode.", least=2, panel="Workload")] = 1000
    quality: Quality = "goodput"
    goals: tuple[Goal, ...] = (Goal(20.0, 50.0, 2.0), Goal(500.0, 50.0, 1.0))
    errors: Annotated[
        float, option("Safety margin between measured loss and goal, in standard errors.", least=0, panel="Goals")
    ] = 1.0
    profile: Annotated[
        str, option("Device profile of the latency that is shown.", completes="profiles", panel="Goals")
    ] = "wisv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.goals or any(goal.points < 0 for goal in self.goals):
            raise BadInput("give at least one goal; points of accuracy must not be negative")


class ConstantLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant channel, the same in both directions."""

    rate_mbps: float
    rtt_ms: float
    per: float = 0.0

    @property
    def csi(self) -> Csi:
        """State of the emulated link."""
        return Csi(self.rate_mbps, self.rate_mbps, self.rtt_ms, self.per, self.per, source="emulated")


class CompareConfig(JudgedPairConfig, frozen=True, kw_only=True):
    """Configuration of `testbed head compare`.

    Raises:
        BadInput: no heads, channels, thresholds or losses, or a value out of range.
    """

    heads: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Directories by name of the head; several are training seeds of one kind. The first is the baseline."""
    channels: tuple[ConstantLink, ...] = (ConstantLink(20.0, 50.0), ConstantLink(500.0, 50.0))
    thresholds: Annotated[tuple[float, ...], option("Values of θ, increasing.", panel="Comparison")] = tuple(
        i / 256 for i in THRESHOLDS
    )
    losses: Annotated[tuple[float, ...], option("Points of accuracy lost at which heads are compared.")] = (1.0, 2.0)
    episodes: Annotated[
        str | None,
        option("Labelled episodes to compare on without decoding; losses are % of critical mismatches kept."),
    ] = None
    calibration: Annotated[str, option("Problems on which θ is chosen.", panel="Workload")] = "bundled:calibration"
    calibration_prompts: Annotated[int, option("Calibration problems.", least=2)] = 500
    prompts: Annotated[int, option("Test problems.", least=2)] = 1000
    seed: fields.Seed = 0
    concurrency: Annotated[int, option("Prompts decoded concurrently.", least=1, panel="Workload")] = 25
    threads: Annotated[int | None, option("CPU threads of each model. Default: all cores but one.")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (all(self.heads.values()) and self.channels and self.thresholds and self.losses):
            raise BadInput("give at least one directory per head, and one channel, threshold and loss")
        if list(self.thresholds) != sorted(set(self.thresholds)) or not 0 < self.thresholds[0] <= 1:
            raise BadInput(f"thresholds must increase within (0, 1], not {self.thresholds}")
        for one in self.channels:
            _ = one.csi  # refuses what no link has


def check_seeds(heads: Mapping[str, Sequence[str]]) -> None:
    """Refuse a head that names a directory twice, however it is spelled: its training seeds would not be independent.

    Raises:
        BadInput: a head does.
        ModelError: there is no such directory.
    """
    for name, directories in heads.items():
        if len({head_directory(one).resolve() for one in directories}) < len(directories):
            raise BadInput(f"{name} names a directory twice: training seeds have one each")
