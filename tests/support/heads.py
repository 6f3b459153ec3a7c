"""Small random decision heads for any pair of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from testbed.assets.fingerprints import SYNTHETIC
from testbed.channel.csi import FEATURES
from testbed.decision_head.head import DecisionHead, HeadInfo, save_head


def random_head(seed: int = 0, drafter_hidden: int = 64, target_hidden: int = 64, **info: Any) -> DecisionHead:
    """A head whose probabilities spread over (0, 1) on standard normal states; by default the synthetic pair's."""
    rng = np.random.default_rng(seed)
    given = {
        "features": FEATURES, "drafter_fingerprint": SYNTHETIC, "target_fingerprint": SYNTHETIC,
        "drafter_quantisation": "F32", "about": "random", "metrics": {}, **info,
    }  # fmt: skip
    described = HeadInfo(drafter_hidden=drafter_hidden, target_hidden=target_hidden, width=8, **given)
    inputs = drafter_hidden + target_hidden + len(described.features)
    return DecisionHead(
        described,
        w1=rng.standard_normal((8, inputs), dtype=np.float32) / np.float32(inputs**0.5),
        b1=np.zeros(8, np.float32),
        w2=rng.standard_normal(8, dtype=np.float32) * 2,
        b2=np.zeros(1, np.float32),
        mean=np.zeros(inputs, np.float32),
        scale=np.ones(inputs, np.float32),
    )


def head_files(directory: Path, seed: int = 0, **info: Any) -> Path:
    """Write a `random_head` into a directory."""
    save_head(random_head(seed, **info), directory)
    return directory
