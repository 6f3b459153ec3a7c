"""What `testbed head collect` and `label` do."""

from __future__ import annotations

from typing import Literal

from testbed.config import Config


class EpisodeCollectConfig(Config, frozen=True):
    """What `testbed head collect` does, and of it `testbed head label` what names an engine."""

    dataset: str = "bundled:calibration"
    prompts: int = 500
    first: int = 0
    """Prompts of the data set that are passed over."""
    window: int = 32
    max_tokens: int = 256
    policy: str = "oracle"
    """One of `head_walk.POLICIES`."""
    explore: float = 0.7
    """Chance that policy `explore` keeps a mismatch: windows then have several, and most are rejected in the end."""
    scorer: str = "number"
    """Reads the final answer: number, exact, package.module:function or file.py:function."""
    engine: str = "vllm"
    model: str | None = None
    """Directory, or Hugging Face id; None: the bundled target."""
    drafter: str | None = None
    """GGUF file; None: the bundled drafter."""
    dtype: str = "float32"
    seed: int = 0
    concurrency: int = 32
    """Prompts under way at once."""
    threads: int | None = None
    """CPU threads of either model; None: all cores but one."""
    gpu_layers: int = -1
    """Layers of the drafter on a GPU; -1: all."""
    kv_type: Literal["f16", "f32"] = "f16"
    """Type of the drafter's KV cache: f16 or f32."""
    memory_share: float = 0.8
    """Share of a GPU's memory that vLLM may take; the drafter lies on it too."""
