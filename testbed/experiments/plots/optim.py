"""Plots of the edge optimizers, with a colour-blind-safe palette (Okabe and Ito), markers and dashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.optim.cost_fit import MeasuredStep, Node, NodeFit, flops
from testbed.optim.inference_cost import Model

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
KINDS = ("png", "svg")


def style(i: int) -> dict[str, Any]:
    """Line style of the i-th series."""
    n = i % len(COLOURS)
    return {"color": COLOURS[n], "marker": MARKERS[n], "linestyle": DASHES[n], "markersize": 4}


def panels(count: int, width: float = 4.2) -> tuple[Any, list[Any]]:
    """A figure with `count` panels side by side.

    Raises:
        BadInput: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        raise BadInput("plots need matplotlib: install the extra `lab`") from exc
    figure = Figure(figsize=(width * count, 3.6), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def save(figure: Any, directory: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG, deterministically.

    Raises:
        BadInput: the directory is not writable.
    """
    import matplotlib

    files = [directory / f"{name}.{kind}" for kind in KINDS]
    try:
        with matplotlib.rc_context({"svg.hashsalt": name}):
            for path in files:
                metadata = {"Date": None} if path.suffix == ".svg" else {}
                figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as exc:
        raise BadInput(f"cannot write plots into {directory}: {exc.strerror or exc}") from exc
    return files


def fit_plot(
    directory: Path, steps: Sequence[MeasuredStep], models: dict[Node, Model], fits: dict[Node, NodeFit]
) -> list[Path]:
    """Fig. 5 for both nodes: measured and fitted time per pass over b·F, one marker per batch size."""
    figure, axes = panels(len(fits))
    for panel, (node, fit) in zip(axes, fits.items(), strict=True):
        mine = [step for step in steps if step.node == node]
        work = np.array([step.batch * flops(models[node], step) for step in mine])
        times_ms = np.array([1e3 * step.seconds / step.passes for step in mine])
        for i, batch in enumerate(sorted({step.batch for step in mine})):
            for phase, face in (("decode", None), ("prompt", "none")):
                rows = [k for k, step in enumerate(mine) if (step.batch, step.phase) == (batch, phase)]
                look = {**style(i), "linestyle": "none", "markerfacecolor": face or style(i)["color"]}
                panel.plot(work[rows], times_ms[rows], **look, label=f"b = {batch}" if phase == "decode" else None)
        line = np.geomspace(work.min(), work.max(), 200)
        panel.plot(line, 1e3 * (fit.c1 * line + fit.c2), color="black", label="c1·b·F + c2")
        panel.set(xscale="log", yscale="log", xlabel="FLOPs per pass, b·F", ylabel="pass time [ms]")
        panel.set_title(f"{node}: R² = {fit.r2:.3f}, n = {fit.steps}", loc="left", fontsize=10)
        panel.legend(frameon=False, fontsize=8)
    return save(figure, directory, "fit")
