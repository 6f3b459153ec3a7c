"""Figures printed in WISP, and the variations of the capacity study."""

from __future__ import annotations

from typing import Any

TABLE_2 = {
    "Qwen3-32B": {
        "sled": {2.0: 83, 4.0: 42, 6.0: 27, 8.0: 21},
        "centralized": {2.0: 97, 4.0: 80, 6.0: 54, 8.0: 41},
        "wisp": {2.0: 164, 4.0: 142, 6.0: 103, 8.0: 86},
    },
    "Qwen3-14B": {
        "sled": {2.0: 119, 4.0: 88, 6.0: 71, 8.0: 52},
        "centralized": {2.0: 198, 4.0: 165, 6.0: 109, 8.0: 86},
        "wisp": {2.0: 245, 4.0: 223, 6.0: 194, 8.0: 154},
    },
}
"""Table 2 as printed in WISP."""

SENSITIVITY: tuple[dict[str, Any], ...] = (
    {"epsilon": 0.01}, {"epsilon": 0.1},
    {"prompt": (50, 150)}, {"prompt": (150, 450)},
    {"response": (20, 280)}, {"response": (200, 400)},
    {"think_s": 5.0}, {"horizon_s": 120.0},
    {"network_ms": 20.0}, {"network_ms": 100.0}, {"network_spread": 0.0},
    {"draft_tps": 25.0}, {"draft_tps": 100.0},
    {"shortest": 1}, {"window": 3}, {"window": 8},
    {"acceptance": 0.6}, {"acceptance": 0.85},
    {"tpr": 0.94, "fpr": 0.86}, {"after": 0.425},
    {"max_batch": 8}, {"max_batch": 32}, {"max_batch": 256},
    {"kv_tokens": 26_000}, {"kv_tokens": 104_000}, {"evict": "tail"}, {"linger": True},
)  # fmt: skip
"""Variations of `--sensitivity`, applied one at a time."""
PRINTED: dict[str, Any] = {
    "late": "stop", "own_token": False, "filling": False, "guard_ms": 0.0, "committed": "linear",
}  # fmt: skip
"""Algorithm 1 as printed; it gives no δ."""
REPAIRS: dict[str, Any] = {
    "late": "edf", "own_token": True, "filling": True, "guard_ms": None, "committed": "geometric",
}  # fmt: skip
SWITCHES: tuple[dict[str, Any], ...] = (
    PRINTED,
    *({**PRINTED, name: value} for name, value in REPAIRS.items()),
    {**PRINTED, "late": "last"},
    *({name: value} for name, value in PRINTED.items()),
    {"late": "last"},
)
"""Variations of `--switches`: as printed, each repair alone, and all repairs but one."""
ESTIMATES: tuple[dict[str, Any], ...] = (
    {"estimate_bias": -0.3}, {"estimate_bias": -0.1}, {"estimate_bias": 0.1}, {"estimate_bias": 0.3},
    {"estimate_noise": 0.1}, {"estimate_noise": 0.3},
    {"estimate_bias": -0.3, "estimate_noise": 0.3}, {"estimate_bias": 0.3, "estimate_noise": 0.3},
    {"calibration_bias": -1.0}, {"calibration_bias": 1.0},
)  # fmt: skip
"""Variations of `--estimates`: errors of the pass times that schedulers plan by, and of the predictor's log-odds."""
