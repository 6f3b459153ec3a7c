"""Metrics of a run as in GuideLLM's `benchmarks.json`: one benchmark for each row.

Source: vllm-project/guidellm 0.5 and later, `GenerativeMetrics` and `StatusDistributionSummary`. The report's `args`
and the schedulers' figures, which describe GuideLLM's own run, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from testbed.experiments.exports.rows import ExportedRow

FILE = "benchmarks.json"
PERCENTILES = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
    "p999": 99.9,
}  # fmt: skip


def document(rows: Sequence[ExportedRow], about: Mapping[str, Any]) -> dict[str, Any]:
    """The report of all rows.

    Args:
        about: version and origin of the run.
    """
    return {"metadata": dict(about), "benchmarks": [_benchmark(one, i) for i, one in enumerate(rows)]}


def _benchmark(one: ExportedRow, index: int) -> dict[str, Any]:
    return {
        "type_": "generative_benchmark",
        "config": {"run_index": index, "strategy": {"type_": "synchronous"}, "method": one.name},
        "duration": one.duration_s,
        "metrics": _metrics(one),
        "testbed": dict(one.row),
    }


def _metrics(one: ExportedRow) -> dict[str, Any]:
    requests, seconds = len(one.times), one.duration_s
    tokens, total = one.tokens, one.tokens + one.prompt_tokens
    per_token_ms = 1e3 * one.latency_s / np.maximum(tokens, 1)
    return {
        "request_totals": {"successful": requests, "incomplete": 0, "errored": 0, "total": requests},
        "requests_per_second": _rate(requests / seconds),
        "request_concurrency": _rate(1.0),
        "request_latency": _by_status(one.latency_s),
        "prompt_token_count": _by_status(one.prompt_tokens),
        "output_token_count": _by_status(tokens),
        "total_token_count": _by_status(total),
        "time_to_first_token_ms": _by_status(1e3 * one.ttft_s),
        "time_per_output_token_ms": _by_status(per_token_ms),
        "inter_token_latency_ms": _by_status(1e3 * one.tpot_s),
        "output_tokens_per_second": _rate(tokens.sum() / seconds),
        "tokens_per_second": _rate(total.sum() / seconds),
    }


def _by_status(values: ArrayLike) -> dict[str, Any]:
    """A distribution over requests, all of which were successful."""
    nothing = summary([])
    return {"successful": summary(values), "incomplete": nothing, "errored": nothing, "total": summary(values)}


def _rate(value: float) -> dict[str, Any]:
    """A rate over the whole run, as a distribution of one value."""
    return _by_status([float(value)])


def summary(values: ArrayLike) -> dict[str, Any]:
    """A distribution's summary; zeros without values, as GuideLLM's."""
    found = np.asarray(values, np.float64)
    some = found if found.size else np.zeros(1)
    kinds, counts = np.unique(some, return_counts=True)
    return {
        "mean": float(some.mean()),
        "median": float(np.median(some)),
        "mode": float(kinds[counts.argmax()]),
        "variance": float(some.var()),
        "std_dev": float(some.std()),
        "min": float(some.min()),
        "max": float(some.max()),
        "count": int(found.size),
        "total_sum": float(found.sum()),
        "percentiles": {name: float(np.percentile(some, share)) for name, share in PERCENTILES.items()},
    }
