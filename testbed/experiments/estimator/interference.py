"""Measures verification interference: a short follow-up in one pass with a long request (WISP Section 3.4, Fig. 4)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from testbed.bs.engines.base import VerifyEngine
from testbed.errors import BadInput
from testbed.experiments.estimator.profile import PassBench, Progress
from testbed.experiments.plots.estimator import save
from testbed.experiments.plots.optim import panels
from testbed.optim.pass_time import RequestWork

SHORT = RequestWork(5, 500)
"""The paper's request B."""
LENGTHS = (32, 64, 128, 256, 512, 1024)
"""New tokens of request A."""


class Interference(msgspec.Struct, frozen=True):
    """Median pass times for one length of A."""

    new_tokens: int
    """New tokens of A, which has nothing cached."""
    alone_a_s: float
    alone_b_s: float
    together_s: float
    """Time of a pass with both A and B."""

    @property
    def inherited(self) -> float:
        """Slowdown of B: time of the joint pass over the time of B alone."""
        return self.together_s / self.alone_b_s


def interference(
    engine: VerifyEngine,
    lengths: Sequence[int] = LENGTHS,
    short: RequestWork = SHORT,
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: Progress = lambda done, total, what: None,
) -> list[Interference]:
    """Time passes of A, of B and of both, in turn; the first repeat of each length is discarded.

    Args:
        lengths: new tokens of A.
        short: new and cached tokens of B.

    Raises:
        BadInput: invalid lengths or repeats, or sequences too long for the engine.
        EngineError: a pass failed.
    """
    if not lengths or min(lengths) < 1 or repeats < 1 or short.new < 1 or short.cached < 0:
        raise BadInput("lengths, new tokens and repeats must be at least 1")
    longest = max(*lengths, short.new + short.cached)
    if longest + 1 > engine.max_positions:
        raise BadInput(f"sequences of {longest} tokens exceed the target's limit of {engine.max_positions - 1}")
    bench, rows = PassBench(engine, seed), []
    for count, length in enumerate(lengths):
        progress(count, len(lengths), f"{length} tokens")
        long = RequestWork(length, 0)
        batches = ((long,), (short,), (long, short))
        times = [[bench.time_s(batch) for batch in batches] for _ in range(1 + repeats)][1:]
        alone_a_s, alone_b_s, together_s = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(Interference(length, alone_a_s, alone_b_s, together_s))
    return rows


def plot(rows: Sequence[Interference], path: Path) -> None:
    """Plot pass time in milliseconds over A's new tokens: A alone, B alone, both in one pass.

    Raises:
        BadInput: matplotlib is missing, or the file cannot be written.
    """
    figure, (axes,) = panels(1, 6.0)
    x = [row.new_tokens for row in rows]
    lines = {
        "A alone": ("alone_a_s", "#0072b2", "o-"),
        "B alone": ("alone_b_s", "#009e73", "^--"),
        "A and B in one pass": ("together_s", "#d55e00", "s:"),
    }
    for label, (field, colour, style) in lines.items():
        axes.plot(x, [1e3 * getattr(row, field) for row in rows], style, color=colour, label=label)
    axes.set(xlabel="new tokens of A", ylabel="pass time [ms]", xscale="log", xticks=x)
    axes.set_xticklabels(map(str, x))
    axes.minorticks_off()
    axes.legend()
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0)
    save(figure, path)
