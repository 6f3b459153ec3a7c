"""Compares decision heads on labelled mismatches: harmless ones kept at the same share of critical ones kept.

Nothing is decoded, so that many training and labelling seeds are cheap. The episodes should be of problems that no head
was trained on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from testbed.channel.csi import Csi
from testbed.decision_head.evaluate import under
from testbed.decision_head.head import DecisionHead
from testbed.errors import BadInput
from testbed.experiments.head.config import CompareConfig, check_seeds
from testbed.experiments.head.equal_loss import Tradeoff, at_equal_loss
from testbed.experiments.head.steps import Labelled, fitting, labelled
from testbed.protocols.quantise import degrade

STEPS = 128
"""Number of values of θ, quantiles of a head's probabilities."""


def compare_labelled(config: CompareConfig) -> dict[str, Any]:
    """Document of `testbed head compare --episodes`: `rows` as those of `at_equal_loss`, by channel and loss.

    Raises:
        BadInput: no heads, unusable heads or episodes, heads of another pair, or labels of one kind only.
    """
    if not config.heads or config.episodes is None:
        raise BadInput("give at least one head, and labelled episodes")
    check_seeds(config.heads)
    data = labelled(Path(config.episodes))
    if data.critical.all() or not data.critical.any():
        raise BadInput(f"all mismatches of {config.episodes} are of one kind: collect more prompts")
    heads = {name: [fitting(path, data) for path in paths] for name, paths in config.heads.items()}
    rows: list[dict[str, Any]] = []
    for channel in config.channels:
        curves = {name: [tradeoff(head, data, channel.csi) for head in ours] for name, ours in heads.items()}
        for points in config.losses:
            found = at_equal_loss(curves, points, config.seed, most=1.0)
            rows += [msgspec.structs.asdict(channel) | row | {"mismatches": len(data.found)} for row in found]
    return {"rows": rows}


def tradeoff(head: DecisionHead, data: Labelled, csi: Csi) -> Tradeoff:
    """Critical and harmless mismatches that a head keeps on a channel, by θ and problem."""
    drafter, target = data.found.states(head.info.states)
    p = under(head, degrade(drafter, head.info.hidden_bits), target, csi)
    thresholds = np.unique(np.append(np.quantile(p, np.arange(STEPS) / STEPS, method="lower"), np.inf))
    _, problem = np.unique(data.found.prompt, return_inverse=True)
    member = (problem[:, None] == np.arange(problem.max() + 1)).astype(np.float64)  # [m, n]
    kept = (p < thresholds[:, None]).astype(np.float64)  # [T, m]; none at the smallest θ
    critical, harmless = data.critical.astype(np.float64), (~data.critical).astype(np.float64)
    won = (kept * harmless) @ member
    return Tradeoff(thresholds, (kept * critical) @ member, critical @ member, won, np.tile(won[-1], (len(won), 1)))
