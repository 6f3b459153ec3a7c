"""A base station's counters in Prometheus' exposition format, made on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from testbed.bs.monitor.client import SERVING
from testbed.bs.monitor.recent import BOUNDS_S
from testbed.bs.monitor.source import Counted
from testbed.bs.observer import RoundSums

COUNTERS = {
    "passes": ("testbed_passes", "Passes of the engine."),
    "failed_passes": ("testbed_failed_passes", "Passes that failed."),
    "failed_sessions": ("testbed_failed_sessions", "Sessions closed after an internal error."),
    "failed_updates": ("testbed_failed_updates", "Updates of estimates dropped after an internal error."),
    "rounds": ("testbed_rounds", "Rounds verified."),
    "pieces": (
        "testbed_pieces",
        "Pieces of prompts computed for the prefix cache, in passes of other requests' rounds.",
    ),
    "busy_s": ("testbed_pass_seconds", "Time in passes."),
    "computed_tokens": ("testbed_computed_tokens", "Positions that passes computed."),
    "cached_tokens": ("testbed_cached_tokens", "Positions that passes found in the prefix cache."),
    "evicted_tokens": ("testbed_evicted_tokens", "Positions expected in the prefix cache and not found there."),
    "window_switches": ("testbed_window_switches", "Changes of the windows hinted to UEs."),
}
"""Name and help of counters, by their keys in `Metrics.snapshot` and `Windows.snapshot`."""
GAUGES = {
    "sessions": ("testbed_sessions", "Sessions open."),
    "waiting": ("testbed_waiting_requests", "Requests that waited for the engine at the last plan."),
    "urgent": ("testbed_urgent_requests", "Those of them whose deadline is near (scheduler slo)."),
    "estimate_mape": ("testbed_estimate_error_ratio", "Running mean of |estimate - time| / time of passes."),
    "drifted": ("testbed_estimate_drifted", "1 if pass times have drifted from the estimator's initial coefficients."),
}
BY_SPEED = {
    "promised_rounds": ("testbed_promised_rounds", "Rounds of sessions with a guaranteed token speed, by that speed."),
    "missed_deadlines": ("testbed_late_rounds", "Those of them that were verified after their deadline."),
    "refused_sessions": (
        "testbed_refused_sessions",
        "Sessions refused by admission, by the speed that they requested.",
    ),
}
"""Counters by speed; 0: speeds beyond `metrics.MOST_SPEEDS`."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds of the histogram of batch sizes."""


def exposition(state: str, about: Mapping[str, str], viewers: int, counted: Counted | None) -> bytes:
    """Metrics in exposition format 0.0.4 or later; without `counted`, those known before the engine is loaded."""
    registry = CollectorRegistry()
    registry.register(_Counted(state, about, viewers, counted))
    return generate_latest(registry)


class _Counted(Collector):
    """One snapshot of all counters."""

    def __init__(self, state: str, about: Mapping[str, str], viewers: int, counted: Counted | None) -> None:
        self._state, self._about, self._viewers, self._counted = state, about, viewers, counted

    def collect(self) -> Iterable[Metric]:
        """All families of metrics."""
        yield InfoMetricFamily("testbed_bs", "What the base station serves.", value=dict(self._about))
        ready = GaugeMetricFamily("testbed_ready", "1 while it serves.", value=float(self._state == SERVING))
        yield ready
        yield GaugeMetricFamily("testbed_viewers", "Viewers of the live view.", value=float(self._viewers))
        if self._counted is not None:
            counts, tally = self._counted
            yield from _of_counts(counts)
            yield from _of_rounds(tally)


def _of_counts(counts: Mapping[str, Any]) -> Iterator[Metric]:
    for key, (name, text) in COUNTERS.items():
        if key in counts:
            yield CounterMetricFamily(name, text, value=counts[key])
    for key, (name, text) in GAUGES.items():
        if counts.get(key) is not None:
            yield GaugeMetricFamily(name, text, value=float(counts[key]))
    for key, (name, text) in BY_SPEED.items():
        family = CounterMetricFamily(name, text, labels=["speed_tps"])
        for speed, count in counts[key].items():
            family.add_metric([speed], count)
        yield family
    failures = CounterMetricFamily("testbed_task_failures", "Failures of background tasks.", labels=["task"])
    for name, count in counts.get("task_failures", {}).items():
        failures.add_metric([name], count)
    yield failures
    promises = counts["promises"]  # any speed is possible: as labels they would grow without bound
    promised_tps = sum(float(speed) * count for speed, count in promises.items())
    yield GaugeMetricFamily(
        "testbed_promised_sessions", "Sessions with a guaranteed token speed.", value=sum(promises.values())
    )
    yield GaugeMetricFamily(
        "testbed_promised_tokens_per_second", "Sum of all guaranteed token speeds.", value=promised_tps
    )
    sizes = {int(size): count for size, count in counts["batch_sizes"].items()}
    buckets = [(str(bound), sum(n for size, n in sizes.items() if size <= bound)) for bound in SIZES]
    yield HistogramMetricFamily(
        "testbed_batch_requests",
        "Requests of a pass.",
        buckets=[*buckets, ("+Inf", sum(sizes.values()))],
        sum_value=sum(size * count for size, count in sizes.items()),
    )


def _of_rounds(tally: RoundSums) -> Iterator[Metric]:
    for name, text, count in (
        ("testbed_drafted_tokens", "Tokens that UEs drafted.", tally.drafted),
        ("testbed_accepted_tokens", "Drafted tokens that were accepted.", tally.accepted),
        (
            "testbed_judged_tokens",
            "Those of them that the target would not have chosen and the judge kept.",
            tally.judged,
        ),
        ("testbed_committed_tokens", "Tokens committed, the target's own included.", tally.committed),
        ("testbed_ahead_tokens", "Tokens of windows sent before a verdict, or for a stream.", tally.ahead),
        ("testbed_used_ahead_tokens", "Those of them that passes verified.", tally.used),
        ("testbed_overlap_seconds", "Time of rounds that passed before the verdict before them.", tally.overlap_s),
    ):
        yield CounterMetricFamily(name, text, value=count)
    parts = CounterMetricFamily("testbed_round_part_seconds", "Time of rounds, by part.", labels=["part"])
    for part, seconds in tally.seconds.items():
        parts.add_metric([part], seconds)
    yield parts
    buckets, below = [], 0
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], tally.times, strict=True):
        below += count
        buckets.append((bound, below))
    yield HistogramMetricFamily(
        "testbed_round_seconds",
        "Time of rounds at the base station, from receipt to verdict, waiting for hidden states left out.",
        buckets=buckets,
        sum_value=tally.time_s,
    )
