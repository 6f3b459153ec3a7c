"""Plots of the pass-time estimator: measured over predicted pass times, and errors (WISP Figs. 9 and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.bs.scheduling.estimator_fit import Sample, design, regime
from testbed.errors import BadInput
from testbed.experiments.plots.optim import panels
from testbed.optim.pass_time import Coefficients

MARKS = {"compute": ("o", "#0072b2"), "memory": ("^", "#d55e00"), "mixed": ("s", "#009e73")}
"""Marker and colour by regime."""


def residuals(coefficients: Coefficients, samples: Sequence[Sample], path: Path) -> None:
    """Four panels: measured over predicted times, relative residuals over predicted times, their histogram (Fig. 9),
    and absolute errors by regime (Fig. 11).

    Raises:
        BadInput: no passes, matplotlib is missing, or the file cannot be written.
    """
    if not samples:
        raise BadInput("no passes to evaluate the coefficients on")
    x, measured_s = design(samples)
    measured, predicted = 1e3 * measured_s, 1e3 * (x @ coefficients.values)
    error = (predicted - measured) / measured
    figure, (scatter, spread, counted, boxes) = panels(4, 4.0)
    kinds = [regime(sample) for sample in samples]
    for kind, (mark, colour) in MARKS.items():
        mine = [i for i, each in enumerate(kinds) if each == kind]
        if mine:
            style = {"marker": mark, "color": colour, "s": 18, "alpha": 0.8, "linewidths": 0}
            scatter.scatter(predicted[mine], measured[mine], label=f"{kind} ({len(mine)})", **style)
            spread.scatter(predicted[mine], 100 * error[mine], **style)
    ends = [min(predicted.min(), measured.min()), max(predicted.max(), measured.max())]
    scatter.plot(ends, ends, color="black", linewidth=0.8)
    scatter.set(xlabel="predicted [ms]", ylabel="measured [ms]", xscale="log", yscale="log")
    scatter.legend(title="regime")
    spread.axhline(0.0, color="black", linewidth=0.8)
    spread.set(xlabel="predicted [ms]", ylabel="relative error [%]", xscale="log")
    counted.hist(100 * error, bins=20, color="0.6", edgecolor="black")
    counted.axvline(100 * float(error.mean()), color="black", linestyle="--", label=f"mean {error.mean():+.1%}")
    counted.set(xlabel="relative error [%]", ylabel="passes")
    counted.legend()
    known = [kind for kind in MARKS if kind in kinds]
    absolute = [[abs(predicted[i] - measured[i]) for i, each in enumerate(kinds) if each == kind] for kind in known]
    boxes.boxplot(absolute, whis=(5, 95), showfliers=False, medianprops={"color": "black"})
    boxes.set_xticks(range(1, len(known) + 1), [f"{kind} ({kinds.count(kind)})" for kind in known])
    boxes.set(xlabel="regime; whiskers: 5th and 95th percentile", ylabel="absolute error [ms]")
    _plain_ticks(scatter.xaxis, scatter.yaxis, spread.xaxis)
    save(figure, path)


def _plain_ticks(*axes: Any) -> None:
    """Label logarithmic axes with plain numbers."""
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    for axis in axes:
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())


def save(figure: Any, path: Path) -> None:
    """Write a figure.

    Raises:
        BadInput: an unknown format, or the file is not writable.
    """
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as exc:
        raise BadInput(f"cannot write {path}: {getattr(exc, 'strerror', None) or exc}") from exc
