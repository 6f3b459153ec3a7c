"""Evaluation of a decision head as a classifier of critical and harmless mismatches."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import PERFECT, Csi, quality
from testbed.decision_head.episodes import Mismatches
from testbed.decision_head.head import DecisionHead
from testbed.decision_head.instances import Instances
from testbed.decision_head.relabel import relabel
from testbed.decision_head.scores import accepted, auc, auc_interval, reliability, scores
from testbed.decision_head.settings import Relabelling
from testbed.decision_head.train import inputs
from testbed.protocols.quantise import degrade

CHANNELS = {
    "perfect": PERFECT,
    "500 Mbit/s, 50 ms": Csi(500.0, 500.0, 50.0),
    "20 Mbit/s, 50 ms": Csi(20.0, 20.0, 50.0),
}
"""Channels with operating points; the last two are those of WISV's Table I."""
THRESHOLDS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Edges of the bands of channel quality."""


class Evaluation(NamedTuple):
    """Scores of a head, and the data of its plots."""

    document: dict[str, Any]
    """Scores by name; `auc`, `brier` and `log_loss` are on a perfect channel against the base labels."""
    critical: NDArray[np.bool_]
    """[n] base labels."""
    p: dict[str, NDArray[np.float32]]
    """[n] p_rej by channel of `CHANNELS`."""
    digits: NDArray[np.bool_] | None
    """[n] whether a mismatch's draft or target token contains a digit."""


def evaluate(
    head: DecisionHead,
    found: Mismatches,
    critical: NDArray[np.bool_],
    config: Relabelling,
    digit_free: NDArray[np.bool_] | None = None,
) -> Evaluation:
    """Evaluate a head on labelled mismatches [n], preferably of prompts not used in training.

    Args:
        head: its number of bits also sets the quantisation of the drafter states.
        found: n mismatches.
        critical: [n] base labels.
        config: relabelling of the mismatches, to evaluate the head under varying channels.
        digit_free: mask by token id, for the rule that accepts mismatches without digits.
    """
    states = found.states(head.info.states)
    drafter, target = degrade(states[0], head.info.hidden_bits), states[1]
    p = {name: under(head, drafter, target, csi) for name, csi in CHANNELS.items()}
    interval = auc_interval(critical, p["perfect"], found.prompt, config.seed)
    digits = None if digit_free is None else ~(_of(digit_free, found.draft_id) & _of(digit_free, found.target_id))
    document = {
        **scores(critical, p["perfect"]),
        "auc_interval": None if interval is None else list(interval),
        "mismatches": len(found),
        "prompts": len(np.unique(found.prompt)),
        "critical": float(critical.mean()),
        **_relabelled(head, found, critical, config),
        "reliability": reliability(critical, p["perfect"]),
        "operating": [
            {"channel": name, "quality": quality(csi, config.quality), "threshold": threshold}
            | accepted(critical, p[name], threshold)
            for name, csi in CHANNELS.items()
            for threshold in THRESHOLDS
        ],
        "digits": None if digits is None else {"auc": auc(critical, digits)} | accepted(critical, digits, 0.5),
    }
    return Evaluation(document, critical, p, digits)


def _relabelled(
    head: DecisionHead, found: Mismatches, critical: NDArray[np.bool_], config: Relabelling
) -> dict[str, Any]:
    """Scores of the head on relabelled instances: overall, and by band of channel quality."""
    instances = relabel(found, critical, config)
    p = head.reject_probability(*inputs(found, instances, head.info))
    overall = {"instances": len(instances), "repaired": float(instances.action.mean()), **scores(instances.action, p)}
    return {"relabelled": overall, "bands": _bands(instances, critical, p)}


def under(head: DecisionHead, drafter: NDArray[Any], target: NDArray[Any], csi: Csi) -> NDArray[np.float32]:
    """p_rej [n] of mismatches under one channel state, of hidden states [n, d] as the head gets them."""
    return head.reject_probability(drafter, target, np.tile(csi.features[head.info.columns], (len(drafter), 1)))


def _bands(
    instances: Instances, critical: NDArray[np.bool_], drawn: NDArray[np.float32]
) -> list[dict[str, float | None]]:
    """Per band of channel quality: instances, share repaired, mean p, AUC against relabelled and base labels."""
    place = np.digitize(instances.quality, BANDS[1:-1])
    rows = []
    for number, (low, high) in enumerate(itertools.pairwise(BANDS)):
        inside = place == number
        if inside.any():
            labels, p = instances.action[inside], drawn[inside]
            rows.append(
                {
                    "from": low,
                    "to": high,
                    "instances": int(inside.sum()),
                    "repaired": float(labels.mean()),
                    "predicted": float(p.mean()),
                    "auc": auc(labels, p),
                    "auc_base": auc(critical[instances.row[inside]], p),
                }
            )
    return rows


def _of(table: NDArray[np.bool_], ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Entries of a mask by token id; False for ids beyond it."""
    found: NDArray[np.bool_] = (ids < len(table)) & table[np.minimum(ids, len(table) - 1)]
    return found
