"""Results of UE processes on a real BS: responses in time and late, token speeds, and the parts of the latency."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from testbed.experiments.capacity.real_ue import Report
from testbed.experiments.capacity.tally import ClassCount


class RealRun(msgspec.Struct, frozen=True, kw_only=True):
    """One load with one system and seed; times in seconds, means over the rounds of the horizon."""

    system: str
    ues: int
    seed: int
    classes: dict[str, ClassCount]
    """Responses that began within the horizon, by speed."""
    speeds: dict[str, float]
    """Median tokens a second of these responses, by their class."""
    goodput_tps: float
    """Committed tokens a second within the horizon, of all UEs."""
    drafted: int
    accepted: int
    rounds: int
    batch_size: float
    draft_s: float
    link_s: float
    queue_s: float
    verify_s: float
    wasted_s: float
    empty: int = 0
    """Rounds with an empty window."""
    different: int
    """Responses that differ from the target's own output."""
    wrapped: bool
    """Whether a UE had to repeat prompts, which the BS has in its prefix cache."""

    still_s: float = 0.0
    """Longest standstill of the base station or a UE within the horizon; rates and times include it."""

    def described(self) -> str:
        """Short description."""
        shares = ", ".join(f"{speed}: {count.share or 0:.1%}" for speed, count in self.classes.items())
        return f"{self.goodput_tps:.1f} tokens/s, violated {shares}"

    def row(self, epsilon: float) -> dict[str, Any]:
        """Row of `summary.json`."""
        judged = sum(count.judged for count in self.classes.values())
        violated = sum(count.violated for count in self.classes.values())
        verdicts = {speed: count.verdict(epsilon) for speed, count in self.classes.items()}
        return {
            "system": self.system,
            "ues": self.ues,
            "seed": self.seed,
            "violations": {speed: count.share for speed, count in self.classes.items()},
            "verdicts": verdicts,
            "classes": msgspec.to_builtins(self.classes),
            "speeds_tps": self.speeds,
            "violation": violated / judged if judged else None,
            "holds": set(verdicts.values()) == {"kept"},
            "judged": judged,
            "goodput_tps": self.goodput_tps,
            "acceptance": self.accepted / self.drafted if self.drafted else None,
            "empty": self.empty / max(1, self.rounds),
            "batch_size": self.batch_size,
            "draft_s": self.draft_s,
            "link_s": self.link_s,
            "queue_s": self.queue_s,
            "verify_s": self.verify_s,
            "wasted_s": self.wasted_s,
            "lossless": self.different == 0,
            "wrapped": self.wrapped,
            "still_s": self.still_s,
        }


def tally(
    system: str, ues: int, seed: int, reports: Sequence[Report], from_s: float, to_s: float, still_s: float = 0.0
) -> RealRun:
    """Judge the responses that began, and count the rounds that ended, from `from_s` to `to_s`.

    A response is violated if it took longer than its tokens at its class's speed (the errata's reading of WISP eq. 20).
    One that began before `from_s`, was due by `to_s` and ended later is violated, too: a class that is never served
    begins no others.

    Args:
        still_s: longest standstill of the base station and of relays.
    """
    classes: dict[str, ClassCount] = {}
    found: dict[str, list[float]] = {}
    for report in sorted(reports, key=lambda r: r.speed_tps):
        name = f"{report.speed_tps:g}"
        count = classes.setdefault(name, ClassCount())
        for one in report.responses:
            starved = one.begin_s < from_s and one.begin_s + one.tokens / report.speed_tps <= to_s < one.end_s
            count.starved += starved
            if from_s <= one.begin_s < to_s or starved:
                speed = one.tokens / (one.end_s - one.begin_s)
                count.judged += 1
                count.violated += speed < report.speed_tps
                count.kept += speed >= report.speed_tps
                found.setdefault(name, []).append(speed)
    rounds = [r for report in reports for r in report.rounds if from_s <= r.end_s < to_s]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(r, name) for r in rounds) if rounds else 0.0

    return RealRun(
        system=system, ues=ues, seed=seed, classes=classes,
        speeds={name: statistics.median(values) for name, values in found.items()},
        goodput_tps=sum(r.committed for r in rounds) / (to_s - from_s),
        drafted=sum(r.drafted for r in rounds), accepted=sum(r.accepted for r in rounds), rounds=len(rounds),
        empty=sum(r.drafted == 0 for r in rounds), batch_size=mean("batch_size"), draft_s=mean("draft_s"),
        link_s=mean("link_s"), queue_s=mean("queue_s"), verify_s=mean("verify_s"), wasted_s=mean("wasted_s"),
        different=sum(not one.same for report in reports for one in report.responses),
        wrapped=any(report.wrapped for report in reports),
        still_s=max([still_s, *(report.still_s for report in reports)]),
    )  # fmt: skip
