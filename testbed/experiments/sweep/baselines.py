"""Schemes of the field by name, as series of a sweep: each is a set of settings of a run.

An installed package adds one by an entry point in the group `testbed.baselines`, which names a `Baseline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from testbed.registry import Registry

BASELINE, NAME = "baseline", "name"
"""Keys of a series: the baseline it takes its settings from, and its own name."""


class Baseline(NamedTuple):
    """A registry entry."""

    kind: str
    about: str
    """What it does here, and what of its source it leaves out."""
    settings: Mapping[str, Any]
    """Keys of a sweep's series."""


BASELINES: Registry[Baseline] = Registry(
    "baseline",
    "testbed.baselines",
    Baseline(
        "specedge",
        "SpecEdge (arXiv 2505.17052): the next window is drafted while the verdict is on its way; one path, not a tree",
        {"protocol": "greedy", "lookahead": 1},
    ),
    Baseline(
        "pearl",
        "PEARL (arXiv 2408.11850): as specedge, with windows as long as the wait; without pre-verification",
        {"protocol": "greedy", "lookahead": 1, "window_rule": "parallel", "window": 32},
    ),
    Baseline(
        "sd-reject",
        "rejection sampling with whole draft distributions uploaded (Leviathan et al., WISV Table I)",
        {"protocol": "rejection"},
    ),
    Baseline(
        "dssd",
        "DSSD (arXiv 2507.12000): each token's own probability up, the target's distribution down after a rejection",
        {"protocol": "split"},
    ),
    Baseline(
        "quantise-then-sample",
        "quantise-then-sample (arXiv 2507.00605): rejection sampling with draft probabilities of 8 bits",
        {"protocol": "rejection", "q_bits": 8},
    ),
    Baseline(
        "sparse-lattice",
        "sparse lattice (arXiv 2510.09942): the 16 most likely ids at 8 bits; a fixed k, and ids by number",
        {"protocol": "rejection", "q_top": 16, "q_bits": 8},
    ),
    Baseline(
        "u-hlm",
        "U-HLM (arXiv 2412.12687): only tokens of which the drafter is unsure are verified; greedy, lossy",
        {"protocol": "skip", "threshold": 0.1, "window": 32},
    ),
    of=Baseline,
)


def expanded(series: dict[str, Any]) -> dict[str, Any]:
    """A series with the settings of its baseline, which its own settings override; its name by default.

    Raises:
        BadInput: an unknown baseline.
    """
    if BASELINE not in series:
        return series
    entry = BASELINES.choose(str(series[BASELINE]))
    own = {key: value for key, value in series.items() if key != BASELINE}
    return {NAME: entry.kind, **entry.settings, **own}
