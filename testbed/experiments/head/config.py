"""Settings of `testbed head collect` and `testbed head label`."""

from __future__ import annotations

from typing import Literal

from testbed.config import Config


class EpisodeCollectConfig(Config, frozen=True):
    """Settings of `testbed head collect`; `testbed head label` uses those of the engine."""

    dataset: str = "bundled:calibration"
    prompts: int = 500
    first: int = 0
    """Number of prompts of the data set to skip."""
    window: int = 32
    max_tokens: int = 256
    policy: str = "oracle"
    """One of `POLICIES` in `head/decoding.py`."""
    explore: float = 0.7
    """Probability that policy `explore` keeps a mismatch; at 0.7 windows hold several, and most are rejected."""
    scorer: str = "number"
    """Extracts the final answer: number, exact, package.module:function or file.py:function."""
    engine: str = "vllm"
    model: str | None = None
    """Target: directory or Hugging Face id; None: the bundled target."""
    drafter: str | None = None
    """GGUF file; None: the bundled drafter."""
    dtype: str = "float32"
    seed: int = 0
    concurrency: int = 32
    """Number of prompts decoded concurrently."""
    threads: int | None = None
    """CPU threads of each model; None: all cores but one."""
    gpu_layers: int = -1
    """Drafter layers offloaded to a GPU; -1: all."""
    kv_type: Literal["f16", "f32"] = "f16"
    """Type of the drafter's KV cache: f16 or f32."""
    memory_share: float = 0.8
    """Fraction of GPU memory for vLLM; the drafter shares the GPU."""
