"""What an estimator gets wrong, drawn: measured against predicted passes, and residuals (WISP, Appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.bs.scheduling.estimator_fit import Sample, design, regime
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients

MARKS = {"compute": ("o", "#0072b2"), "memory": ("^", "#d55e00"), "mixed": ("s", "#009e73")}
"""By regime: shapes that differ without their colours."""


def residuals(coefficients: Coefficients, samples: Sequence[Sample], path: Path) -> None:
    """Three panels: measured over predicted times, relative residuals over predicted times, and their histogram.

    Raises:
        BadInput: no passes, no plotting library, a file of an unknown kind, or one that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullFormatter, ScalarFormatter
    except ImportError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    if not samples:
        raise BadInput("no passes to judge the coefficients by")
    x, measured_s = design(samples)
    measured, predicted = 1e3 * measured_s, 1e3 * (x @ coefficients.values)
    error = (predicted - measured) / measured
    figure = Figure(figsize=(12.0, 3.8), layout="constrained")
    scatter, spread, counted = figure.subplots(1, 3)
    kinds = [regime(sample) for sample in samples]
    for kind, (mark, colour) in MARKS.items():
        mine = [i for i, each in enumerate(kinds) if each == kind]
        if mine:
            style = {"marker": mark, "color": colour, "s": 18, "alpha": 0.8, "linewidths": 0}
            scatter.scatter(predicted[mine], measured[mine], label=f"{kind} ({len(mine)})", **style)
            spread.scatter(predicted[mine], 100 * error[mine], **style)
    ends = [min(predicted.min(), measured.min()), max(predicted.max(), measured.max())]
    scatter.plot(ends, ends, color="black", linewidth=0.8)
    scatter.set(xlabel="predicted, ms", ylabel="measured, ms", xscale="log", yscale="log")
    scatter.legend(title="regime")
    spread.axhline(0.0, color="black", linewidth=0.8)
    spread.set(xlabel="predicted, ms", ylabel="(predicted − measured) / measured, %", xscale="log")
    counted.hist(100 * error, bins=20, color="0.6", edgecolor="black")
    counted.axvline(100 * float(error.mean()), color="black", linestyle="--", label=f"mean {error.mean():+.1%}")
    counted.set(xlabel="(predicted − measured) / measured, %", ylabel="passes")
    counted.legend()
    for axis in (scatter.xaxis, scatter.yaxis, spread.xaxis):
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as exc:
        raise BadInput(f"cannot write {path}: {getattr(exc, 'strerror', None) or exc}") from exc
