"""How well a head tells critical mismatches from harmless ones."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.channel.csi import FEATURES, PERFECT, Csi
from testbed.decision_head.episodes import Mismatches
from testbed.decision_head.head import DecisionHead
from testbed.decision_head.instances import Instances
from testbed.decision_head.relabel import relabel
from testbed.decision_head.scores import accepted, auc, auc_interval, reliability, scores
from testbed.decision_head.settings import Relabelling
from testbed.protocols.quantise import degrade

CHANNELS = {
    "perfect": PERFECT,
    "500 Mbit/s, 50 ms": Csi(500.0, 500.0, 50.0),
    "20 Mbit/s, 50 ms": Csi(20.0, 20.0, 50.0),
}
"""Operating points are given for these; the last two are those of WISV's Table I."""
THRESHOLDS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Edges of the channel quality's bands."""


class Evaluation(NamedTuple):
    """What was found, and what its plots are made of."""

    document: dict[str, Any]
    """`auc`, `brier`, `log_loss` on a perfect channel against the base labels, and the rest by name."""
    critical: NDArray[np.bool_]
    """[n] base labels."""
    p: dict[str, NDArray[np.float32]]
    """[n] by channel of `CHANNELS`."""
    digits: NDArray[np.bool_] | None
    """[n] whether one of the two tokens holds a digit."""


def evaluate(
    head: DecisionHead,
    found: Mismatches,
    critical: NDArray[np.bool_],
    config: Relabelling,
    digit_free: NDArray[np.bool_] | None = None,
) -> Evaluation:
    """Hold a head against labelled mismatches [n], at best of prompts that it has not seen.

    Args:
        head: drafter states are degraded to its bits.
        found: n mismatches.
        critical: [n] base labels.
        config: relabels the mismatches, to see how the head follows the channel.
        digit_free: by token id, for the rule that keeps a mismatch without digits.
    """
    drafter = degrade(found.drafter_hidden, head.info.hidden_bits)
    p = {name: _under(head, drafter, found.target_hidden, csi) for name, csi in CHANNELS.items()}
    first = p["perfect"]
    interval = auc_interval(critical, first, found.prompt, config.seed)
    instances = relabel(found, critical, config)
    columns = [FEATURES.index(name) for name in head.info.features]
    drawn = head.reject_probability(
        drafter[instances.row], found.target_hidden[instances.row], instances.features[:, columns]
    )
    digits = None if digit_free is None else ~(_of(digit_free, found.draft_id) & _of(digit_free, found.target_id))
    document = {
        **scores(critical, first),
        "auc_interval": None if interval is None else list(interval),
        "mismatches": len(found),
        "prompts": len(np.unique(found.prompt)),
        "critical": float(critical.mean()),
        "relabelled": {
            "instances": len(instances),
            "repaired": float(instances.action.mean()),
            **scores(instances.action, drawn),
        },
        "bands": _bands(instances, critical, drawn),
        "reliability": reliability(critical, first),
        "operating": [
            {"channel": name, "quality": csi.quality, "threshold": threshold} | accepted(critical, p[name], threshold)
            for name, csi in CHANNELS.items()
            for threshold in THRESHOLDS
        ],
        "digits": None if digits is None else {"auc": auc(critical, digits)} | accepted(critical, digits, 0.5),
    }
    return Evaluation(document, critical, p, digits)


def _under(head: DecisionHead, drafter: NDArray[Any], target: NDArray[Any], csi: Csi) -> NDArray[np.float32]:
    """p_rej [n] of all mismatches on one channel."""
    seen = csi.features[[FEATURES.index(name) for name in head.info.features]]
    return head.reject_probability(drafter, target, np.tile(seen, (len(drafter), 1)))


def _bands(
    instances: Instances, critical: NDArray[np.bool_], drawn: NDArray[np.float32]
) -> list[dict[str, float | None]]:
    """By channel quality: instances, share repaired, mean p, AUC against the relabelled and the base labels."""
    place = np.digitize(instances.quality, BANDS[1:-1])
    rows = []
    for number, (low, high) in enumerate(itertools.pairwise(BANDS)):
        mine = place == number
        if mine.any():
            labels, p = instances.action[mine], drawn[mine]
            rows.append(
                {
                    "from": low,
                    "to": high,
                    "instances": int(mine.sum()),
                    "repaired": float(labels.mean()),
                    "predicted": float(p.mean()),
                    "auc": auc(labels, p),
                    "auc_base": auc(critical[instances.row[mine]], p),
                }
            )
    return rows


def _of(table: NDArray[np.bool_], ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Entries of a table by token id; ids beyond it are False."""
    found: NDArray[np.bool_] = (ids < len(table)) & table[np.minimum(ids, len(table) - 1)]
    return found
