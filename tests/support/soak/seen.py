"""Results of a soak test, as JSON and as a table."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support.soak.plan import Plan

WARM_UP = 0.25
"""Share of the time after which memory must be constant."""


class Sample(NamedTuple):
    """State of the BS process at one time."""

    t_s: float
    rss_mb: float
    files: int
    sessions: int
    waiting: int


@dataclass
class Seen:
    """Outputs, faults and samples of a soak test."""

    prompts: int = 0
    differing: int = 0
    failures: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    """Counts of faults that took effect."""
    samples: list[Sample] = field(default_factory=list)
    files_before: int = 0
    after: Sample | None = None
    """Sample after all UEs have left."""

    def later(self, name: str) -> tuple[float, float]:
        """Medians of the first and of the last third of the time after the warm-up."""
        end_s = self.samples[-1].t_s
        begin_s = WARM_UP * end_s
        third_s = (end_s - begin_s) / 3
        values = [(s.t_s, float(getattr(s, name))) for s in self.samples]
        first = [v for t, v in values if begin_s <= t < begin_s + third_s]
        last = [v for t, v in values if t >= end_s - third_s]
        return statistics.median(first), statistics.median(last)

    def document(self, plan: Plan) -> dict[str, Any]:
        """The results as a JSON document."""
        assert self.after is not None
        trends = {name: self.later(name) for name in Sample._fields[1:]}
        return {
            "seconds": plan.seconds, "ues": plan.ues, "seed": plan.seed, "prompts": self.prompts,
            "differing": self.differing, "failures": self.failures, "faults": dict(self.faults),
            "trends": {name: {"first": a, "last": b} for name, (a, b) in trends.items()},
            "most": {name: max(getattr(s, name) for s in self.samples) for name in trends},
            "files_before": self.files_before, "after": self.after._asdict(),
            "samples": [list(sample) for sample in self.samples],
        }  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """The results as a table."""
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(document["faults"].items()))
    lines = [
        f"{document['ues']} UEs for {document['seconds']:g} s, seed {document['seed']}; faults: {faults}",
        f"{document['prompts']} outputs, {document['differing']} differing, {len(document['failures'])} failed",
        f"{'':10}{'first third':>13}{'last third':>13}{'most':>10}{'after':>10}",
    ]
    for name, trend in document["trends"].items():
        most, after = document["most"][name], document["after"][name]
        lines.append(f"{name:10}{trend['first']:13.1f}{trend['last']:13.1f}{most:10.1f}{after:10.1f}")
    return "\n".join(lines)
