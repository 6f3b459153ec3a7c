"""Rows of `summary.json`: settings, quality, speed and losslessness of each method, and of each category of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.marks import Marker
from testbed.experiments.results.energy import energy_columns, idle_energies
from testbed.experiments.results.metrics import acceptance_columns, byte_columns, speedup_columns, time_columns
from testbed.experiments.results.quality import NUMBER, quality
from testbed.protocols.methods import Ahead, run_method
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.records import RequestRecord
from testbed.ue.run import Outcome

PARTS = ("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s")
CATEGORIES = "categories"
"""Column of a row with the figures of each category."""
UNNAMED = "none"
"""Category of prompts without one, where others have one."""


def rows(
    outcomes: Sequence[Outcome],
    examples: Sequence[Example],
    texts: Mapping[tuple[str, int], str],
    *,
    window: int,
    threshold: float,
    hidden_bits: int = 16,
    window_rule: str = "fixed",
    lookahead: Ahead = 0,
    own: Mapping[tuple[str, int], str] | None = None,
    idle_w: float | None = None,
    sampling: Sampling = GREEDY,
    mark: Marker = NUMBER,
) -> list[dict[str, Any]]:
    """One row per method, in order of first appearance; `categories` has the columns from `requests` on for each.

    Args:
        examples, texts: prompts, by request index, and output texts, by (method, request).
        lookahead: rows have the mean over rounds where it is not 0 or 1.
        own: as `texts`, of the target; None: unknown.
        idle_w: power of the idle device; None: not measured.
    """
    idle = idle_energies([o.record for o in outcomes], idle_w)
    idle_j = {(o.method, o.request): energy_j for o, energy_j in zip(outcomes, idle, strict=True)}

    def figures(mine: Sequence[Outcome]) -> dict[str, Any]:
        return {
            "requests": len(mine),
            **_quality(mine, examples, texts, own, mark),
            **_speed([o.record for o in mine]),
            **speedup_columns(mine, outcomes),
            **_gate(mine),
            **energy_columns(mine[0].method, [o.record for o in mine], [idle_j[o.method, o.request] for o in mine]),
        }

    def row(method: str) -> dict[str, Any]:
        mine = [o for o in outcomes if o.method == method]
        settings = _settings(method, window, window_rule, _looked(mine, lookahead), threshold, hidden_bits, sampling)
        return {**settings, **_channel(outcomes), **figures(mine), **_categories(mine, examples, figures)}

    return [row(method) for method in dict.fromkeys(o.method for o in outcomes)]


def _quality(
    outcomes: Sequence[Outcome],
    examples: Sequence[Example],
    texts: Mapping[tuple[str, int], str],
    own: Mapping[tuple[str, int], str] | None,
    mark: Marker,
) -> dict[str, Any]:
    """Quality of a method's outcomes."""
    method = outcomes[0].method
    target = None if own is None else {request: text for (kind, request), text in own.items() if kind == method}
    return quality({o.request: texts.get((method, o.request), "") for o in outcomes}, examples, target, mark)


def _categories(
    outcomes: Sequence[Outcome], examples: Sequence[Example], figures: Callable[[Sequence[Outcome]], dict[str, Any]]
) -> dict[str, Any]:
    """Figures by category, in order of the prompts; empty if no prompt has one."""
    names = {o.request: examples[o.request].category for o in outcomes}
    if not any(names.values()):
        return {}
    groups: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: o.request):
        groups.setdefault(names[outcome.request] or UNNAMED, []).append(outcome)
    return {CATEGORIES: {name: figures(some) for name, some in groups.items()}}


def by_category(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each category and row, with `category`, in order of categories; empty if no row has any."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for name, figures in (row.get(CATEGORIES) or {}).items():
            rest = {key: value for key, value in row.items() if key != CATEGORIES}
            found.setdefault(name, []).append({**rest, "category": name, **figures})
    return [row for some in found.values() for row in some]


def _looked(outcomes: Sequence[Outcome], lookahead: Ahead) -> float:
    """The lookahead of a run, or the mean over its rounds where each window chose its own, as in streams."""
    rounds = [round_ for outcome in outcomes for round_ in outcome.record.rounds]
    if isinstance(lookahead, int) and not any(round_.streamed for round_ in rounds):
        return lookahead
    return float(np.mean([round_.lookahead for round_ in rounds]))


def _settings(
    method: str,
    window: int,
    window_rule: str,
    lookahead: float,
    threshold: float,
    hidden_bits: int,
    asked: Sampling,
) -> dict[str, Any]:
    """Method and settings of a row; None for settings that the method does not use."""
    kind = run_method(method)
    sampling = kind.sampling(asked)
    return {
        "method": method,
        "window": window,
        "window_rule": window_rule,
        "lookahead": lookahead if kind.looks_ahead else None,
        "threshold": threshold if kind.judged or kind.skips else None,
        "hidden_bits": hidden_bits if kind.judged else None,
        "temperature": sampling.temperature if kind.sampled or kind.coupled or sampling.coupled else None,
        "sampling": "coupled" if sampling.coupled else None,
        "verification": "block" if sampling.block else None,
        "q_top": sampling.q_top or None,
        "q_bits": sampling.q_bits if kind.uploads else None,
    }


def _channel(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Mean channel state over the rounds, without rates of source `passive`: small uploads do not reveal them."""
    seen = [r.csi for o in outcomes for r in o.record.rounds if r.csi is not None]
    sure = [csi for csi in seen if csi.source != "passive"]

    def mean(values: list[float]) -> float | None:
        return math.fsum(values) / len(values) if values else None

    return {
        "uplink_mbps": mean([csi.uplink_mbps for csi in sure]),
        "downlink_mbps": mean([csi.downlink_mbps for csi in sure]),
        "rtt_ms": mean([csi.rtt_ms for csi in seen]),
        "per": mean([csi.per_up for csi in sure]),
    }


def _speed(records: Sequence[RequestRecord]) -> dict[str, Any]:
    rounds = [r for record in records for r in record.rounds]
    wasted = sum(r.drafted - r.accepted for r in rounds)
    latencies = np.array([record.latency_s for record in records])
    tokens = [len(record.token_ids) for record in records]
    return {
        "aal": sum(r.committed for r in rounds) / len(rounds),
        "rounds": len(rounds) / len(records),
        **acceptance_columns(rounds),
        "latency_s": float(latencies.mean()),
        "latency_p95_s": float(np.percentile(latencies, 95)),
        "throughput_tps": sum(tokens) / float(latencies.sum()),
        "tokens": sum(tokens) / len(records),
        **time_columns(records),
        "wasted_tokens": wasted / len(records),
        "wasted_s": sum(r.wasted_s for r in rounds) / len(records),
        "drafted_ahead": sum(r.drafted_ahead for r in rounds) / len(records),
        "void": sum(r.void for r in rounds) / len(records),
        "hidden_s": sum(r.hidden_s for r in rounds) / len(records),
        "streamed": sum(r.streamed and not r.drafted for r in rounds) / len(records),
        "uplink_bytes": sum(r.uplink_bytes for r in records) / len(records),
        "downlink_bytes": sum(r.downlink_bytes for r in records) / len(records),
        **byte_columns(records),
        **{part: sum(getattr(r, part) for r in rounds) / len(records) for part in PARTS},
    }


def _gate(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    if any(o.lossless is None for o in outcomes):
        return {"lossless": None, "ties": 0}
    ties = sum(o.divergence is not None and o.divergence.tie for o in outcomes)
    return {"lossless": all(o.lossless for o in outcomes), "ties": ties}
