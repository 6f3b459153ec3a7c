"""Metrics of a row as in AIPerf's `profile_export_aiperf.json`.

Source: ai-dynamo/aiperf, `JsonExportData` and `JsonMetricResult`, schema 1.0, which allows further metrics: those of
speculation are added under the names of `results.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from testbed.experiments.exports.rows import ExportedRow

FILE = "profile_export_aiperf.json"
SCHEMA = "1.0"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
SPECULATION = {
    "acceptance": "ratio", "acceptance_cond": "ratio", "mean_accepted": "tokens", "mean_acceptance_length": "tokens",
    "aal": "tokens", "uplink_bytes_per_token": "bytes", "downlink_bytes_per_token": "bytes",
    "energy_per_token_j": "J", "accuracy": "ratio",
}  # fmt: skip
"""Columns of a row that AIPerf has no metric for, with their units."""


def document(one: ExportedRow, about: Mapping[str, Any]) -> dict[str, Any]:
    """The export of one row.

    Args:
        about: version and origin of the run.
    """
    seconds, tokens = one.duration_s, one.tokens
    per_user = tokens[tokens > 1] / np.maximum(one.latency_s[tokens > 1], 1e-12)
    known = {name: unit for name, unit in SPECULATION.items() if one.row.get(name) is not None}
    return {
        "schema_version": SCHEMA,
        "request_throughput": _scalar("requests/sec", len(one.times) / seconds),
        "request_count": _scalar("requests", len(one.times)),
        "request_latency": metric("ms", 1e3 * one.latency_s),
        "time_to_first_token": metric("ms", 1e3 * one.ttft_s),
        "inter_token_latency": metric("ms", 1e3 * one.tpot_s),
        "inter_chunk_latency": metric("ms", 1e3 * one.gaps_s),
        "output_token_throughput": _scalar("tokens/sec", tokens.sum() / seconds),
        "output_token_throughput_per_user": metric("tokens/sec/user", per_user),
        "output_sequence_length": metric("tokens", tokens),
        "input_sequence_length": metric("tokens", one.prompt_tokens),
        "total_output_tokens": _scalar("tokens", tokens.sum()),
        "benchmark_duration": _scalar("sec", seconds),
        **{name: _scalar(unit, one.row[name]) for name, unit in known.items()},
        "input_config": {"testbed": {**about, "method": one.name}},
        "was_cancelled": False,
    }


def _scalar(unit: str, value: float) -> dict[str, Any]:
    return {"unit": unit, "avg": float(value)}


def metric(unit: str, values: ArrayLike) -> dict[str, Any]:
    """A metric with its distribution; without values, its unit alone."""
    found = np.asarray(values, np.float64)
    if not found.size:
        return {"unit": unit}
    return {
        "unit": unit,
        "avg": float(found.mean()),
        **{f"p{share}": float(np.percentile(found, share)) for share in PERCENTILES},
        "min": float(found.min()),
        "max": float(found.max()),
        "std": float(found.std(ddof=1)) if found.size > 1 else 0.0,
    }
