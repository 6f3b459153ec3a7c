"""Verification interference: a short follow-up in one pass with a long request (WISP, Section 3.4, Fig. 4)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from testbed.bs.engines.base import VerifyEngine
from testbed.errors import BadInput
from testbed.experiments.estimator.profile import PassBench, Progress
from testbed.optim.pass_time import RequestWork

SHORT = RequestWork(5, 500)
"""The paper's request B."""
LENGTHS = (32, 64, 128, 256, 512, 1024)
"""New tokens of request A."""


class Interference(msgspec.Struct, frozen=True):
    """Medians of passes with one length of A."""

    new_tokens: int
    """Of A, which has nothing cached."""
    alone_a_s: float
    alone_b_s: float
    together_s: float
    """Of the pass that holds both, which B waits for."""

    @property
    def inherited(self) -> float:
        """How many times longer B takes than by itself."""
        return self.together_s / self.alone_b_s


def interference(
    engine: VerifyEngine,
    lengths: Sequence[int] = LENGTHS,
    short: RequestWork = SHORT,
    *,
    repeats: int = 5,
    seed: int = 0,
    told: Progress = lambda done, total, what: None,
) -> list[Interference]:
    """Passes of A, of B and of both, in turn, the first of each length dropped.

    Args:
        lengths: new tokens of A.
        short: what B computes, and has in the prefix cache.

    Raises:
        BadInput: no lengths, none repeated, or sequences that the engine does not take.
        EngineError: a pass failed.
    """
    if not lengths or min(lengths) < 1 or repeats < 1 or short.new < 1 or short.cached < 0:
        raise BadInput("give lengths, new tokens and repeats of 1 or more")
    longest = max(*lengths, short.new + short.cached)
    if longest + 1 > engine.max_positions:
        raise BadInput(f"sequences of {longest} tokens, but the target takes {engine.max_positions - 1}")
    bench, rows = PassBench(engine, seed), []
    for count, length in enumerate(lengths):
        told(count, len(lengths), f"{length} tokens")
        long = RequestWork(length, 0)
        batches = ((long,), (short,), (long, short))
        times = [[bench.time_s(batch) for batch in batches] for _ in range(1 + repeats)][1:]
        alone_a_s, alone_b_s, together_s = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(Interference(length, alone_a_s, alone_b_s, together_s))
    return rows


def plot(rows: Sequence[Interference], path: Path) -> None:
    """Milliseconds over A's new tokens: A alone, B alone, both in one pass.

    Raises:
        BadInput: no plotting library, a file of an unknown kind, or one that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    figure = Figure(figsize=(6.0, 3.8), layout="constrained")
    axes = figure.subplots()
    x = [row.new_tokens for row in rows]
    lines = {
        "A alone": ("alone_a_s", "#0072b2", "o-"),
        "B alone": ("alone_b_s", "#009e73", "^--"),
        "A and B in one pass": ("together_s", "#d55e00", "s:"),
    }
    for label, (field, colour, style) in lines.items():
        axes.plot(x, [1e3 * getattr(row, field) for row in rows], style, color=colour, label=label)
    axes.set(xlabel="new tokens of A", ylabel="time of the pass, ms", xscale="log", xticks=x)
    axes.set_xticklabels(map(str, x))
    axes.minorticks_off()
    axes.legend()
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as exc:
        raise BadInput(f"cannot write {path}: {getattr(exc, 'strerror', None) or exc}") from exc
